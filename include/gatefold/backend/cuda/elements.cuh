#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

/// Epilogues on neighbouring columns, eight at a time, which a thread reads and writes as 16 bytes: what registers are
/// on the CPU (cpu/register.hpp). exp and reciprocal are the device's own instructions, off by some units in the last
/// place (PTX ISA, ex2 and rcp), and 0 for denormals: what follows a product of bfloat16 has fewer digits.
namespace gatefold::device {

/// Neighbouring values, with the arithmetic of epilogues and activations.
template <int Size>
struct Elements {
  static constexpr int size = Size;
  float v[size];

  Elements() = default;
  __device__ explicit Elements(float value) {
#pragma unroll
    for (float& x : v) x = value;
  }
  /// f(i) for each.
  template <class F>
  __device__ static Elements each(const F& f) {
    Elements result;
#pragma unroll
    for (int i = 0; i < size; ++i) result.v[i] = f(i);
    return result;
  }

#define GATEFOLD_ELEMENTS_OPERATOR(op)                                                            \
  friend __device__ Elements operator op(const Elements& a, const Elements& b) {                  \
    return each([&](int i) { return a.v[i] op b.v[i]; });                                         \
  }                                                                                               \
  friend __device__ Elements operator op(const Elements& a, float b) { return a op Elements(b); } \
  friend __device__ Elements operator op(float a, const Elements& b) { return Elements(a) op b; } \
  __device__ Elements& operator op##=(const Elements& b) { return *this = *this op b; }
  GATEFOLD_ELEMENTS_OPERATOR(+)
  GATEFOLD_ELEMENTS_OPERATOR(-)
  GATEFOLD_ELEMENTS_OPERATOR(*)
  GATEFOLD_ELEMENTS_OPERATOR(/)
#undef GATEFOLD_ELEMENTS_OPERATOR
  __device__ Elements operator-() const {
    return each([&](int i) { return -v[i]; });
  }

#define GATEFOLD_ELEMENTS_FUNCTION(name)                    \
  friend __device__ Elements name(const Elements& a) {      \
    return each([&](int i) { return math::name(a.v[i]); }); \
  }
  GATEFOLD_ELEMENTS_FUNCTION(erf)
  GATEFOLD_ELEMENTS_FUNCTION(log)
  GATEFOLD_ELEMENTS_FUNCTION(sqrt)
  GATEFOLD_ELEMENTS_FUNCTION(tanh)
  GATEFOLD_ELEMENTS_FUNCTION(abs)
#undef GATEFOLD_ELEMENTS_FUNCTION
  friend __device__ Elements exp(const Elements& a) {
    return each([&](int i) {
      float result;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a.v[i] * 1.4426950408889634f));
      return result;
    });
  }
  friend __device__ Elements reciprocal(const Elements& a) {
    return each([&](int i) {
      float result;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a.v[i]));
      return result;
    });
  }
  friend __device__ Elements where_positive(const Elements& v, const Elements& a, const Elements& b) {
    return each([&](int i) { return math::where_positive(v.v[i], a.v[i], b.v[i]); });
  }
};

/// Access to the first `count` of some elements: the `at` of an epilogue (epilogue.hpp). Those past them are neither
/// read nor written; their values are 0.
template <int Size>
struct ElementsAccess {
  using Value = Elements<Size>;
  int count = Size;

  __device__ Value load(const float* p) const { return loaded(p); }
  __device__ Value load(const Bfloat16* p) const { return loaded(p); }
  __device__ void store(float* p, const Value& e) const {
    stored(p, e, [](float v) { return v; });
  }
  __device__ void store(Bfloat16* p, const Value& e) const {
    stored(p, e, [](float v) { return Bfloat16::from(v); });
  }

 private:
  /// What is read or written at once.
  template <class T>
  struct alignas(Size * sizeof(T) < 16 ? Size * sizeof(T) : 16) Part {
    static constexpr int size = (Size * sizeof(T) < 16 ? Size * sizeof(T) : 16) / sizeof(T);
    T v[size];
  };
  template <class T>
  __device__ bool whole(const T* p) const {
    return count == Size && reinterpret_cast<std::uintptr_t>(p) % alignof(Part<T>) == 0;
  }
  template <class T>
  __device__ Value loaded(const T* p) const {
    if (!whole(p)) return Value::each([&](int i) { return i < count ? float(p[i]) : 0.f; });
    Value e;
#pragma unroll
    for (int i = 0; i < Size; i += Part<T>::size) {
      const Part<T> part = *reinterpret_cast<const Part<T>*>(p + i);
#pragma unroll
      for (int j = 0; j < Part<T>::size; ++j) e.v[i + j] = float(part.v[j]);
    }
    return e;
  }
  template <class T, class F>
  __device__ void stored(T* p, const Value& e, const F& to) const {
    if (!whole(p)) {
#pragma unroll
      for (int i = 0; i < Size; ++i)
        if (i < count) p[i] = to(e.v[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < Size; i += Part<T>::size) {
      Part<T> part;
#pragma unroll
      for (int j = 0; j < Part<T>::size; ++j) part.v[j] = to(e.v[i + j]);
      *reinterpret_cast<Part<T>*>(p + i) = part;
    }
  }
};

/// An epilogue of one sum, or of two, that runs on Elements: not one that says `scalar_only`, or takes values alone.
template <class E, class... V>
inline constexpr bool takes_elements =
    std::is_invocable_r_v<Elements<8>, const E&, const ElementsAccess<8>&, Index, Index, Index, V...>;
template <class E, int Matrices>
concept ElementsEpilogue = !requires {
  requires E::scalar_only;
}
&&(Matrices == 1 ? takes_elements<E, Elements<8>> : takes_elements<E, Elements<8>, Elements<8>>);

/// What an epilogue makes of columns [j, j + at.count) of slot s.
template <int Matrices, int Size, class E>
__device__ Elements<Size> finished_elements(const E& epilogue, const ElementsAccess<Size>& at, Index expert, Index s,
                                            Index j, const Elements<Size> (&sum)[Matrices]) {
  if constexpr (!ElementsEpilogue<E, Matrices>) {
    Elements<Size> result(0);
#pragma unroll
    for (int i = 0; i < Size; ++i)
      if (i < at.count)
        result.v[i] = finished<Matrices>(epilogue, expert, s, j + i, sum[0].v[i], sum[Matrices - 1].v[i]);
    return result;
  } else if constexpr (Matrices == 1) {
    return epilogue(at, expert, s, j, sum[0]);
  } else {
    return epilogue(at, expert, s, j, sum[0], sum[1]);
  }
}

/// Store what an epilogue makes of some columns of slot s, from j on, of a row of `columns`; behind the last stands 0
/// up to the row's end.
/// @param row  of `stride` values
template <int Matrices, int Size, class C, class E>
__device__ void finish_row_part(const E& epilogue, Index expert, Index s, Index j, Index columns,
                                const Elements<Size> (&sum)[Matrices], C* row, Index stride) {
  const Index left = columns - j;
  const ElementsAccess<Size> at{left < Size ? static_cast<int>(left) : Size};
  at.store(row + j, finished_elements<Matrices>(epilogue, at, expert, s, j, sum));
  for (int k = at.count; k < Size && j + k < stride; ++k) row[j + k] = C{};
}

/// Neighbouring columns whose values become one sum.
inline constexpr int kSumColumns = 32;
/// The element of a c whose rows hold, for each kSumColumns columns, the sum of what an epilogue makes of them.
struct ColumnSum {
  float value;
};
/// Elements of a row of c that belong to so many columns.
template <class C>
GATEFOLD_HD constexpr Index row_elements(Index columns) {
  return std::is_same_v<C, ColumnSum> ? (columns + kSumColumns - 1) / kSumColumns : columns;
}

/// Store the sum of what an epilogue makes of kSumColumns columns of slot s, of which each of four neighbouring lanes
/// has eight, from j on. By all lanes of a warp.
/// @param exists  whether there is a column j of such a slot
/// @order  eight by ascending column, then pairs of lanes, then both pairs
template <int Matrices, class E>
__device__ void finish_column_sum(const E& epilogue, bool exists, Index expert, Index s, Index j, Index columns,
                                  const Elements<8> (&sum)[Matrices], ColumnSum* row) {
  static_assert(kSumColumns == 4 * 8);
  float total = 0;
  if (exists) {
#pragma unroll
    for (int half = 0; half < 8; half += 4) {  // fewer registers
      const Index left = columns - j - half;
      const ElementsAccess<4> at{left < 0 ? 0 : left < 4 ? static_cast<int>(left) : 4};
      Elements<4> part[Matrices];
#pragma unroll
      for (int m = 0; m < Matrices; ++m) part[m] = Elements<4>::each([&](int i) { return sum[m].v[half + i]; });
      const Elements<4> terms = finished_elements<Matrices>(epilogue, at, expert, s, j + half, part);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < at.count) total += terms.v[i];
    }
  }
  for (int distance = 1; distance < 4; distance *= 2) total += __shfl_xor_sync(0xffffffffu, total, distance);
  if (exists && threadIdx.x % 4 == 0) row[j / kSumColumns].value = total;
}

}  // namespace gatefold::device
