#include "gatefold/core/bfloat16.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

using gatefold::Bfloat16;

static_assert(std::is_trivially_copyable_v<Bfloat16> && std::is_trivially_default_constructible_v<Bfloat16>);
// A float or int does not convert to Bfloat16. Only its bits, a std::uint16_t, construct a Bfloat16.
static_assert(!std::is_constructible_v<Bfloat16, float> && !std::is_constructible_v<Bfloat16, int>);
static_assert(std::is_constructible_v<Bfloat16, std::uint16_t>);

TEST_CASE("Bfloat16: rounds to nearest, ties to even; NaN stays NaN") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(float(Bfloat16::from(1.0f)) == 1.0f);
  CHECK(float(Bfloat16::from(-2.5f)) == -2.5f);
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.0f, -8))) == 1.0f);                             // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + 3 * std::ldexp(1.0f, -8))) == 1.0f + std::ldexp(1.0f, -6));  // a tie, to even
  CHECK(float(Bfloat16::from(1.0f + std::ldexp(1.001f, -8))) == 1.0f + std::ldexp(1.0f, -7));
  CHECK(float(Bfloat16::from(std::numeric_limits<float>::max())) == infinity);
  // NaNs. Rounding their bits like those of a number would carry into the sign, or give the bits of infinity.
  for (const std::uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u})
    CHECK(std::isnan(float(Bfloat16::from(std::bit_cast<float>(bits)))));
  for (float v = 1e-30f; std::abs(v) < 1e30f; v *= -1.0137f)
    CHECK(std::abs(float(Bfloat16::from(v)) - v) <= std::ldexp(std::abs(v), -8));
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const float v = Bfloat16{static_cast<std::uint16_t>(bits)};
    CHECK_UNARY(std::isnan(v) ? std::isnan(float(Bfloat16::from(v))) : Bfloat16::from(v).bits == bits);
  }
}
