#include "gatefold/io/float16.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>

using gatefold::Float16;

namespace {

/// IEEE 754-2008, 3.4: sign, 5 bits of exponent (bias 15), 10 bits of mantissa.
double value(std::uint32_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = int(bits >> 10 & 31), mantissa = int(bits & 0x3ff);
  if (exponent == 31) return mantissa ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return exponent ? sign * std::ldexp(1024 + mantissa, exponent - 25) : sign * std::ldexp(mantissa, -24);
}

}  // namespace

TEST_CASE("Float16: all values follow IEEE 754 and convert back") {
  for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const float v = Float16{static_cast<std::uint16_t>(bits)};
    if (std::isnan(value(bits))) {
      CHECK_UNARY(std::isnan(v));
      CHECK_UNARY(std::isnan(float(Float16::from(v))));
    } else {
      CHECK_UNARY(double(v) == value(bits));
      CHECK_UNARY(Float16::from(v).bits == bits);
    }
  }
}

TEST_CASE("Float16: rounds to nearest, ties to even; overflow is infinite") {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {  // the number after the largest stands for infinity
    const double low = value(bits), high = bits == 0x7bff ? 65536 : value(bits + 1), middle = (low + high) / 2;
    const auto next = [](double v, double to) { return std::nextafter(float(v), float(to)); };
    CHECK_UNARY(Float16::from(next(middle, low)).bits == bits);
    CHECK_UNARY(Float16::from(next(middle, high)).bits == bits + 1);
    CHECK_UNARY(Float16::from(float(middle)).bits == bits + bits % 2);
    CHECK_UNARY(Float16::from(-float(middle)).bits == 0x8000 + bits + bits % 2);
  }
  CHECK(Float16::from(std::numeric_limits<float>::max()).bits == 0x7c00);
  CHECK(Float16::from(std::numeric_limits<float>::denorm_min()).bits == 0);
}
