#include "gatefold/io/elements.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

using gatefold::Index;
namespace io = gatefold::io;
namespace safetensors = io::safetensors;

namespace {

/// Little-endian numbers of given sizes, at an odd address.
struct Bytes {
  std::vector<std::byte> memory{1};
  Bytes& add(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) memory.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  template <class T>
  std::vector<T> as(const char* dtype, std::size_t count) const {
    std::vector<T> to(count);
    safetensors::decode(dtype, memory.data() + 1, count, to.data());
    return to;
  }
};

}  // namespace

TEST_CASE("decode: reads every number type, and whole numbers as Index") {
  using Doubles = std::vector<double>;
  const std::uint64_t minus_two = ~std::uint64_t(1);
  CHECK(Bytes().add(0x3fc0, 2).add(0xc000, 2).as<double>("BF16", 2) == Doubles{1.5, -2});
  CHECK(Bytes().add(0x3e00, 2).add(0xc000, 2).as<double>("F16", 2) == Doubles{1.5, -2});
  CHECK(Bytes().add(0x3fc00000, 4).add(0xc0000000, 4).as<float>("F32", 2) == std::vector<float>{1.5f, -2.f});
  CHECK(Bytes().add(0x3ff8000000000000, 8).as<float>("F64", 1) == std::vector<float>{1.5f});
  for (const auto& [dtype, bytes] : {std::pair{"I8", 1}, {"I16", 2}, {"I32", 4}, {"I64", 8}}) {
    CHECK(Bytes().add(minus_two, bytes).add(3, bytes).as<Index>(dtype, 2) == std::vector<Index>{-2, 3});
    CHECK(Bytes().add(minus_two, bytes).add(3, bytes).as<double>(dtype, 2) == Doubles{-2, 3});
  }
  for (const auto& [dtype, bytes] : {std::pair{"U8", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}})
    CHECK(Bytes().add(1, bytes).as<float>(dtype, 1) == std::vector<float>{1.f});
  CHECK(Bytes().add(~std::uint64_t(0), 4).as<Index>("U32", 1) == std::vector<Index>{0xffffffff});
}

TEST_CASE("reads_as: returns false for types that decode cannot read") {
  for (const char* dtype : {"BF16", "F16", "F32", "F64", "U64"}) {
    CHECK(safetensors::reads_as<float>(dtype));
    CHECK_FALSE(safetensors::reads_as<Index>(dtype));
  }
  for (const char* dtype : {"I8", "I16", "I32", "I64", "U8", "U16", "U32"}) {
    CHECK(safetensors::reads_as<double>(dtype));
    CHECK(safetensors::reads_as<Index>(dtype));
  }
  for (const char* dtype : {"BOOL", "F8_E4M3", "F8_E5M2", "F4", "C64", "", "f32"}) {
    CHECK_FALSE(safetensors::reads_as<float>(dtype));
    CHECK_FALSE(safetensors::reads_as<Index>(dtype));
  }
}

TEST_CASE("encode: inverts decode; 16-bit types round to nearest even") {
  const std::vector<float> from{1.5f,           -2.f,     1.f + 0x1p-8f,
                                1.f + 0x1p-11f, 0x1p-24f, std::numeric_limits<float>::infinity()};
  const auto through = [&](const char* dtype, std::size_t size) {
    std::vector<std::byte> bytes(from.size() * size);
    std::vector<float> to(from.size());
    safetensors::encode(dtype, from.data(), from.size(), bytes.data());
    safetensors::decode(dtype, bytes.data(), to.size(), to.data());
    return to;
  };
  CHECK(through("F32", 4) == from);
  CHECK(through("F64", 8) == from);
  CHECK(through("BF16", 2) == std::vector<float>{1.5f, -2.f, 1.f, 1.f, 0x1p-24f, from[5]});
  CHECK(through("F16", 2) == std::vector<float>{1.5f, -2.f, from[2], 1.f, 0x1p-24f, from[5]});
}

TEST_CASE("encode: doubles are rounded to 16 bits only once") {
  struct Form {
    const char* dtype;
    std::uint64_t infinity;
    double largest, step;  // the largest number, and the step there
  };
  for (const Form& form : {Form{"BF16", 0x7f80, 0x1.fep127, 0x1p120}, Form{"F16", 0x7c00, 65504, 32}})
    for (std::uint64_t bits = 0; bits < form.infinity; ++bits) {
      const double below = Bytes().add(bits, 2).as<double>(form.dtype, 1)[0];
      const double above = bits + 1 < form.infinity ? Bytes().add(bits + 1, 2).as<double>(form.dtype, 1)[0]
                                                    : form.largest + form.step;  // in the place of infinity
      const double border = (below + above) / 2;                                 // exact
      const double all[] = {std::nextafter(border, below), border, std::nextafter(border, above), -border,
                            -std::nextafter(border, above)};
      std::byte to[sizeof all / sizeof all[0] * 2];
      safetensors::encode(form.dtype, all, 5, to);
      std::uint16_t got[5];
      std::memcpy(got, to, sizeof to);
      const std::uint64_t even = bits + bits % 2, minus = 0x8000;
      REQUIRE(got[0] == bits);
      REQUIRE(got[1] == even);
      REQUIRE(got[2] == bits + 1);
      REQUIRE(got[3] == (even | minus));
      REQUIRE(got[4] == ((bits + 1) | minus));
    }
  const double wide[] = {1e300, -1e300, 1e-300, -1e-300, std::numeric_limits<double>::quiet_NaN()};
  std::byte to[10];
  safetensors::encode("F16", wide, 5, to);
  std::uint16_t got[5];
  std::memcpy(got, to, sizeof to);
  CHECK((got[0] == 0x7c00 && got[1] == 0xfc00 && got[2] == 0 && got[3] == 0x8000 && (got[4] & 0x7fff) > 0x7c00));
}

TEST_CASE("dtype: names each element type; Index stays I64") {
  CHECK(std::string(safetensors::dtype<float>(io::Stored::as_they_are)) == "F32");
  CHECK(std::string(safetensors::dtype<double>(io::Stored::as_they_are)) == "F64");
  CHECK(std::string(safetensors::dtype<double>(io::Stored::bf16)) == "BF16");
  CHECK(std::string(safetensors::dtype<float>(io::Stored::f16)) == "F16");
  CHECK(std::string(safetensors::dtype<float>(io::Stored::f64)) == "F64");
  CHECK(std::string(safetensors::dtype<double>(io::Stored::f32)) == "F32");
  CHECK(std::string(safetensors::dtype<Index>(io::Stored::bf16)) == "I64");
}

using gatefold::Float16;

namespace {

/// Returns the value of 16 bits by IEEE 754-2008, 3.4: sign, 5 bits of exponent (bias 15), 10 bits of mantissa.
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
