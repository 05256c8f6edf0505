#pragma once

#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

/// Epilogues on eight neighbouring columns at a time, which a thread reads and writes as 16 bytes: what registers are
/// on the CPU (cpu/register.hpp). exp and reciprocal are the device's own instructions, off by some units in the last
/// place (CUDA C++ Programming Guide, "Mathematical Functions"): what follows a product of bfloat16 has fewer digits.
namespace gatefold::device {

/// Neighbouring values, with the arithmetic of epilogues and activations.
struct Elements {
  static constexpr int size = 8;
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
    return each([&](int i) { return __expf(a.v[i]); });
  }
  friend __device__ Elements reciprocal(const Elements& a) {
    return each([&](int i) { return __fdividef(1.f, a.v[i]); });
  }
  friend __device__ Elements where_positive(const Elements& v, const Elements& a, const Elements& b) {
    return each([&](int i) { return math::where_positive(v.v[i], a.v[i], b.v[i]); });
  }
};

/// Access to the first `count` of eight elements: the `at` of an epilogue (epilogue.hpp). Those past them are neither
/// read nor written; their values are 0.
struct ElementsAccess {
  using Value = Elements;
  int count = Elements::size;

  __device__ Elements load(const float* p) const {
    if (!whole(p)) return Elements::each([&](int i) { return i < count ? p[i] : 0.f; });
    const auto* const four = reinterpret_cast<const float4*>(p);
    const float4 a = four[0], b = four[1];
    Elements e;
    e.v[0] = a.x, e.v[1] = a.y, e.v[2] = a.z, e.v[3] = a.w;
    e.v[4] = b.x, e.v[5] = b.y, e.v[6] = b.z, e.v[7] = b.w;
    return e;
  }
  __device__ void store(float* p, const Elements& e) const {
    if (whole(p)) {
      reinterpret_cast<float4*>(p)[0] = {e.v[0], e.v[1], e.v[2], e.v[3]};
      reinterpret_cast<float4*>(p)[1] = {e.v[4], e.v[5], e.v[6], e.v[7]};
    } else {
#pragma unroll
      for (int i = 0; i < Elements::size; ++i)
        if (i < count) p[i] = e.v[i];
    }
  }
  __device__ Elements load(const Bfloat16* p) const {
    if (!whole(p)) return Elements::each([&](int i) { return i < count ? float(p[i]) : 0.f; });
    const Unit unit = *reinterpret_cast<const Unit*>(p);
    return Elements::each([&](int i) { return float(unit.v[i]); });
  }
  __device__ void store(Bfloat16* p, const Elements& e) const {
    if (whole(p)) {
      Unit unit;
#pragma unroll
      for (int i = 0; i < Elements::size; ++i) unit.v[i] = Bfloat16::from(e.v[i]);
      *reinterpret_cast<Unit*>(p) = unit;
    } else {
#pragma unroll
      for (int i = 0; i < Elements::size; ++i)
        if (i < count) p[i] = Bfloat16::from(e.v[i]);
    }
  }

 private:
  struct alignas(16) Unit {
    Bfloat16 v[Elements::size];
  };
  __device__ bool whole(const void* p) const {
    return count == Elements::size && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
  }
};

/// An epilogue of one sum, or of two, that runs on Elements: not one that says `scalar_only`, or takes values alone.
template <class E, int Matrices>
concept ElementsEpilogue = !requires {
  requires E::scalar_only;
}
&&((Matrices == 1 && std::is_invocable_r_v<Elements, const E&, const ElementsAccess&, Index, Index, Index, Elements>) ||
   (Matrices == 2 &&
    std::is_invocable_r_v<Elements, const E&, const ElementsAccess&, Index, Index, Index, Elements, Elements>));

/// Store what an epilogue makes of columns [j, j + at.count) of slot s.
template <int Matrices, class C, class E>
__device__ void finish_elements(const E& epilogue, const ElementsAccess& at, Index expert, Index s, Index j,
                                const Elements (&sum)[Matrices], C* c) {
  if constexpr (!ElementsEpilogue<E, Matrices>) {
    Elements result(0);
#pragma unroll
    for (int i = 0; i < Elements::size; ++i)
      if (i < at.count)
        result.v[i] = finished<Matrices>(epilogue, expert, s, j + i, sum[0].v[i], sum[Matrices - 1].v[i]);
    at.store(c, result);
  } else if constexpr (Matrices == 1) {
    at.store(c, epilogue(at, expert, s, j, sum[0]));
  } else {
    at.store(c, epilogue(at, expert, s, j, sum[0], sum[1]));
  }
}

/// Store what an epilogue makes of eight columns of slot s, from j on, of a row of `columns`; behind the last stands 0
/// up to the row's end.
/// @param row  of `stride` values
template <int Matrices, class C, class E>
__device__ void finish_row_part(const E& epilogue, Index expert, Index s, Index j, Index columns,
                                const Elements (&sum)[Matrices], C* row, Index stride) {
  const Index left = columns - j;
  const ElementsAccess at{left < Elements::size ? static_cast<int>(left) : Elements::size};
  finish_elements<Matrices>(epilogue, at, expert, s, j, sum, row + j);
  for (int k = at.count; k < Elements::size && j + k < stride; ++k) row[j + k] = C{};
}

}  // namespace gatefold::device
