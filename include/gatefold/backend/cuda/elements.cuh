#pragma once

#include <cstdint>

#include "gatefold/backend/math.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// Groups of neighbouring values of a row, which one thread reads and writes 16 bytes at a time. They correspond to
/// vector registers on the CPU (cpu/register.hpp). exp and reciprocal use the device's approximate instructions (PTX
/// ISA, ex2 and rcp), which are off by some units in the last place and treat denormals as 0. This is accurate enough,
/// because exp and reciprocal are applied to products of bfloat16 values, whose rounding errors are much larger.
namespace gatefold::detail_::device {

/// An array of `Size` floats with elementwise arithmetic and mathematical functions, as epilogues, activations and
/// update rules use them.
template <int Size>
struct Elements {
  static constexpr int size = Size;
  float v[size];

  Elements() = default;
  __device__ explicit Elements(float value) {
#pragma unroll
    for (float& x : v) x = value;
  }
  /// Returns the array of the values f(0), f(1), ….
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

#define GATEFOLD_ELEMENTS_FUNCTION(name)                             \
  friend __device__ Elements name(const Elements& a) {               \
    return each([&](int i) { return functor::math::name(a.v[i]); }); \
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
    return each([&](int i) { return functor::math::where_positive(v.v[i], a.v[i], b.v[i]); });
  }
};

/// Loads and stores `Size` neighbouring values, or only the first `count` of them at the end of a row. Epilogues
/// (epilogue.hpp) and loops over columns (warp.cuh) access memory through such an object, their argument `at`. The
/// remaining values are neither read nor written; a load returns 0 for them.
template <int Size>
struct ElementsAccess {
  using Value = Elements<Size>;
  int count = Size;

  /// Returns an object that loads and stores min(left, Size) values.
  GATEFOLD_HD static constexpr ElementsAccess of_left(Index left) {
    return {left < Size ? static_cast<int>(left) : Size};
  }

  __device__ Value load(const float* p) const { return loaded(p); }
  __device__ Value load(const Bfloat16* p) const { return loaded(p); }
  __device__ void store(float* p, const Value& e) const {
    stored(p, e, [](float v) { return v; });
  }
  __device__ void store(Bfloat16* p, const Value& e) const {
    stored(p, e, [](float v) { return Bfloat16::from(v); });
  }

 private:
  /// The values that one instruction reads or writes: at most 16 bytes of the group.
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

}  // namespace gatefold::detail_::device
