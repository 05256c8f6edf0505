#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "gatefold/backend/order.hpp"
#include "gatefold/core/bfloat16.hpp"

namespace gatefold {

/// An IEEE 754 binary16 number, with 11 significant bits and magnitudes from 6e-8 to 65504.
struct Float16 {
  std::uint16_t bits;

  /// Rounds v to the nearest binary16 number, ties to even. Magnitudes of 65520 or more become infinite; NaN stays NaN.
  static Float16 from(float v) {
    const auto u = std::bit_cast<std::uint32_t>(v);
    const std::uint32_t sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    const auto signed_bits = [&](std::uint32_t magnitude) {
      return Float16{static_cast<std::uint16_t>(sign | magnitude)};
    };
    if (size > kInfinity) return signed_bits(0x7e00 | (size >> 13 & 0x3ff));
    if (size >= kOverflow) return signed_bits(0x7c00);
    // The result is a subnormal binary16 number. Neighbouring subnormal numbers have the distance 2⁻²⁴, and so have
    // neighbouring floats in [0.5, 1). Therefore, adding 0.5 to |v| rounds |v| to a multiple of 2⁻²⁴.
    if (size < kNormal)
      return signed_bits(std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) -
                         std::bit_cast<std::uint32_t>(0.5f));
    return signed_bits((size + 0xfff + (size >> 13 & 1) - kRebias) >> 13);
  }
  operator float() const {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16, size = bits & 0x7fff;
    if (size >= 0x7c00) return std::bit_cast<float>(sign | kInfinity | (size & 0x3ff) << 13);
    if (size < 0x400) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(size) * 0x1p-24f));
    return std::bit_cast<float>(sign | ((size << 13) + kRebias));
  }

 private:
  // The bits of the floats ∞, 65520 and 2⁻¹⁴ (the smallest normal binary16 number), and the difference between the
  // exponent biases of float and binary16, in the position of a float's exponent.
  static constexpr std::uint32_t kInfinity = 0x7f800000, kOverflow = 0x477ff000, kNormal = 0x38800000,
                                 kRebias = 112u << 23;
};

}  // namespace gatefold

/// Converts elements between the types in tensor files (for example BF16) and the types of tensors in memory (float,
/// double, Index).
namespace gatefold::io {

/// The type in which floating-point elements are written to a file.
enum class Stored { as_they_are, bf16, f16, f32, f64 };

namespace safetensors {

/// Calls f(S{}), with S the C++ type of an element type (dtype) of safetensors files, for example float for "F32" or
/// Bfloat16 for "BF16".
/// @return false, without a call of f, if the library has no C++ type for the dtype. Such dtypes are booleans, numbers
///         of 4 or 6 bits, floats of 8 bits, and complex numbers
bool with_element(std::string_view dtype, const auto& f) {
  if (dtype == "F32") return f(float{}), true;
  if (dtype == "BF16") return f(Bfloat16{}), true;
  if (dtype == "F16") return f(Float16{}), true;
  if (dtype == "F64") return f(double{}), true;
  if (dtype == "I64") return f(std::int64_t{}), true;
  if (dtype == "I32") return f(std::int32_t{}), true;
  if (dtype == "I16") return f(std::int16_t{}), true;
  if (dtype == "I8") return f(std::int8_t{}), true;
  if (dtype == "U64") return f(std::uint64_t{}), true;
  if (dtype == "U32") return f(std::uint32_t{}), true;
  if (dtype == "U16") return f(std::uint16_t{}), true;
  if (dtype == "U8") return f(std::uint8_t{}), true;
  return false;
}

/// Returns whether elements of the type `dtype` in a file can be read as T. float and double can be read from all
/// supported types, Index from all integer types except U64.
template <class T>
bool reads_as(std::string_view dtype) {
  bool whole = false;
  const bool known =
      with_element(dtype, [&]<class S>(S) { whole = std::is_integral_v<S> && !std::is_same_v<S, std::uint64_t>; });
  return known && (std::is_floating_point_v<T> || whole);
}

/// Converts `count` elements from a file: to[i] = from[i], rounded if T cannot represent the value exactly.
/// @param from  the elements in the file's type (dtype); their address need not be aligned
/// @pre reads_as<T>(dtype)
template <class T>
void decode(std::string_view dtype, const std::byte* from, std::size_t count, T* to) {
  with_element(dtype, [&]<class S>(S element) {
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&element, from + i * sizeof(S), sizeof(S));
      if constexpr (std::is_arithmetic_v<S>) {
        to[i] = static_cast<T>(element);
      } else {
        to[i] = static_cast<T>(static_cast<float>(element));
      }
    }
  });
}

template <class T>
constexpr const char* dtype() {
  if constexpr (std::is_same_v<T, float>) {
    return "F32";
  } else if constexpr (std::is_same_v<T, double>) {
    return "F64";
  } else {
    constexpr bool supported = std::is_same_v<T, Index>;
    GATEFOLD_REQUIRE(supported, "gatefold: io cannot store this element type: use float, double or gatefold::Index");
    return "I64";
  }
}
/// Returns the name that a file uses for the type of its elements (dtype), for example "BF16", if elements of type T
/// are stored as `stored`. Integers keep their type.
template <class T>
constexpr const char* dtype(Stored stored) {
  if (!std::is_floating_point_v<T> || stored == Stored::as_they_are) return dtype<T>();
  constexpr const char* names[] = {"", "BF16", "F16", "F32", "F64"};
  return names[static_cast<int>(stored)];
}

/// Rounds v "to odd": returns v if a float can represent it, otherwise the one of the two neighbouring floats whose
/// last bit is 1. If the result is then rounded to 16 bits, it is the same number as v rounded directly to 16 bits.
inline float rounded_to_odd(double v) {
  const float f = static_cast<float>(v);
  if (static_cast<double>(f) == v || functor::is_nan(v)) return f;
  const auto bits = __builtin_bit_cast(std::uint32_t, f);
  const bool beyond = (static_cast<double>(f) < v) == (v < 0);
  return __builtin_bit_cast(float, (bits - (beyond ? 1 : 0)) | 1);
}

/// Converts `count` elements to the type of a file: to[i] = from[i]. Types of 16 bits are rounded to nearest, ties to
/// even.
/// @param to  the elements in the file's type (dtype); their address need not be aligned
template <class T>
void encode(std::string_view dtype, const T* from, std::size_t count, std::byte* to) {
  with_element(dtype, [&]<class S>(S element) {
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::is_arithmetic_v<S>) {
        element = static_cast<S>(from[i]);
      } else {
        element = S::from(rounded_to_odd(static_cast<double>(from[i])));
      }
      std::memcpy(to + i * sizeof(S), &element, sizeof(S));
    }
  });
}

}  // namespace safetensors
}  // namespace gatefold::io
