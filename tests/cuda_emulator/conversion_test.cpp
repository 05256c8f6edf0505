// Tests cvt: saturation, truncation, rounding and NaN, between all kinds of types.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST_CASE("cvt: sign-extends, zero-extends or truncates integers") {
  CHECK(evaluate<i64>("cvt.s64.s32 %o, %a;", -5) == -5);
  CHECK(evaluate<u64>("cvt.u64.u32 %o, %a;", ~0u) == 0xffffffffu);
  CHECK(evaluate<i32>("cvt.s32.s16 %o, %a;", i16{-5}) == -5);
  CHECK(evaluate<u32>("cvt.u32.u16 %o, %a;", u16{0xfffb}) == 0xfffbu);
  CHECK(evaluate<u16>("cvt.u16.u32 %o, %a;", 0x12345678u) == 0x5678);
  CHECK(evaluate<u32>("cvt.u32.u64 %o, %a;", u64{0x1234567890abcdef}) == 0x90abcdefu);
  CHECK(evaluate<i32>("cvt.s32.s8 %o, %a;", 0x1280u) == -128);
  CHECK(evaluate<u32>("cvt.u32.u8 %o, %a;", 0x1280u) == 0x80u);
  CHECK(evaluate<i64>("cvt.s64.s8 %o, %a;", u16{0x00ff}) == -1);
  // A signed result narrower than its register is sign-extended, an unsigned one is zero-extended.
  CHECK(evaluate<i32>("cvt.s8.s32 %o, %a;", 0x1ff) == -1);
  CHECK(evaluate<u32>("cvt.u8.u32 %o, %a;", 0x1ffu) == 0xff);
}

TEST_CASE("cvt.sat: clamps integers to the result type") {
  CHECK(evaluate<i16>("cvt.sat.s16.s32 %o, %a;", 40000) == 32767);
  CHECK(evaluate<i16>("cvt.sat.s16.s32 %o, %a;", -40000) == -32768);
  CHECK(evaluate<u16>("cvt.sat.u16.s32 %o, %a;", -1) == 0);
  CHECK(evaluate<i32>("cvt.sat.s32.u32 %o, %a;", ~0u) == std::numeric_limits<i32>::max());
  CHECK(evaluate<u32>("cvt.sat.u32.s64 %o, %a;", i64{1} << 40) == ~0u);
  CHECK(evaluate<u32>("cvt.sat.u8.u32 %o, %a;", 300u) == 255);
}

TEST_CASE("cvt: floating point to integer rounds in the given direction") {
  struct Case {
    const char* direction;
    double value;
    i32 expected;
  };
  const Case cases[] = {{"rzi", 2.7, 2}, {"rzi", -2.7, -2}, {"rni", 2.5, 2}, {"rni", 3.5, 4},  {"rni", -2.5, -2},
                        {"rmi", 2.7, 2}, {"rmi", -2.1, -3}, {"rpi", 2.1, 3}, {"rpi", -2.7, -2}};
  for (const Case& c : cases) {
    CAPTURE(c.direction);
    CAPTURE(c.value);
    const std::string direction(c.direction);
    CHECK(evaluate<i32>("cvt." + direction + ".s32.f64 %o, %a;", c.value) == c.expected);
    CHECK(evaluate<i32>("cvt." + direction + ".s32.f32 %o, %a;", static_cast<float>(c.value)) == c.expected);
    CHECK(evaluate<i64>("cvt." + direction + ".s64.f64 %o, %a;", c.value) == c.expected);
    CHECK(evaluate<float>("cvt." + direction + ".f32.f32 %o, %a;", static_cast<float>(c.value)) ==
          static_cast<float>(c.expected));
    CHECK(evaluate<double>("cvt." + direction + ".f64.f64 %o, %a;", c.value) == c.expected);
  }
}

TEST_CASE("cvt: saturates to integers and converts NaN like devices") {
  CHECK(evaluate<i32>("cvt.rzi.s32.f32 %o, %a;", 3e9f) == std::numeric_limits<i32>::max());
  CHECK(evaluate<i32>("cvt.rzi.s32.f32 %o, %a;", -infinity) == std::numeric_limits<i32>::min());
  CHECK(evaluate<u32>("cvt.rzi.u32.f32 %o, %a;", -1.5f) == 0);
  CHECK(evaluate<u32>("cvt.rzi.u32.f32 %o, %a;", 1e10f) == ~0u);
  CHECK(evaluate<u64>("cvt.rzi.u64.f64 %o, %a;", 1e30) == ~u64{0});
  CHECK(evaluate<i64>("cvt.rzi.s64.f64 %o, %a;", -1e30) == std::numeric_limits<i64>::min());
  CHECK(evaluate<u64>("cvt.rzi.u64.f64 %o, %a;", 0x1p63) == u64{1} << 63);
  // The result is 0 if neither type has 64 bits, otherwise only the top bit (PTX ISA, cvt).
  CHECK(evaluate<i32>("cvt.rzi.s32.f32 %o, %a;", nan32) == 0);
  CHECK(evaluate<u32>("cvt.rzi.u32.f32 %o, %a;", nan32) == 0);
  CHECK(evaluate<i64>("cvt.rzi.s64.f32 %o, %a;", nan32) == std::numeric_limits<i64>::min());
  CHECK(evaluate<u64>("cvt.rzi.u64.f64 %o, %a;", nan64) == u64{1} << 63);
  CHECK(evaluate<i32>("cvt.rzi.s32.f64 %o, %a;", nan64) == std::numeric_limits<i32>::min());
}

TEST_CASE("cvt: integer to floating point rounds in four directions") {
  const i32 odd = (1 << 24) + 1;  // between two floats
  CHECK(evaluate<float>("cvt.rn.f32.s32 %o, %a;", odd) == 0x1p24f);
  CHECK(evaluate<float>("cvt.rz.f32.s32 %o, %a;", -odd) == -0x1p24f);
  CHECK(evaluate<float>("cvt.rp.f32.s32 %o, %a;", odd) == 0x1p24f + 2);
  CHECK(evaluate<float>("cvt.rm.f32.s32 %o, %a;", -odd) == -0x1p24f - 2);
  CHECK(evaluate<float>("cvt.rn.f32.u32 %o, %a;", ~0u) == 0x1p32f);
  CHECK(evaluate<float>("cvt.rn.f32.u64 %o, %a;", ~u64{0}) == 0x1p64f);
  CHECK(evaluate<float>("cvt.rn.f32.s8 %o, %a;", u16{0x80}) == -128.0f);
  CHECK(evaluate<double>("cvt.rn.f64.s32 %o, %a;", -7) == -7.0);
  CHECK(evaluate<double>("cvt.rp.f64.u64 %o, %a;", (u64{1} << 53) + 1) == 0x1p53 + 2);
  CHECK(evaluate<double>("cvt.rz.f64.s64 %o, %a;", (i64{1} << 53) + 1) == 0x1p53);
  CHECK(evaluate<u16>("cvt.rn.f16.s32 %o, %a;", 2049) == 0x6800);     // 2048: the tie goes to even
  CHECK(evaluate<u16>("cvt.rn.f16.u32 %o, %a;", 100000u) == 0x7c00);  // infinity
  CHECK(evaluate<u16>("cvt.rn.f16.u64 %o, %a;", u64{3}) == 0x4200);
  CHECK(evaluate<u16>("cvt.rn.bf16.s64 %o, %a;", i64{-5}) == 0xc0a0);
  CHECK(evaluate<u16>("cvt.rn.bf16.s64 %o, %a;", (i64{1} << 62) + (i64{1} << 54)) == 0x5e80);      // a tie
  CHECK(evaluate<u16>("cvt.rn.bf16.s64 %o, %a;", (i64{1} << 62) + (i64{1} << 54) + 1) == 0x5e81);  // above it
  CHECK(evaluate<u16>("cvt.rn.bf16.s64 %o, %a;", -(i64{1} << 62) - (i64{1} << 54) - 1) == 0xde81);
}

TEST_CASE("cvt: f64 to f32 rounds, f32 to f64 is exact") {
  const double above = 1 + 0x1p-40;
  CHECK(evaluate<float>("cvt.rn.f32.f64 %o, %a;", above) == 1.0f);
  CHECK(evaluate<float>("cvt.rp.f32.f64 %o, %a;", above) == std::nextafter(1.0f, 2.0f));
  CHECK(evaluate<float>("cvt.rm.f32.f64 %o, %a;", -above) == std::nextafter(-1.0f, -2.0f));
  CHECK(evaluate<float>("cvt.rz.f32.f64 %o, %a;", -above) == -1.0f);
  CHECK(evaluate<float>("cvt.rn.f32.f64 %o, %a;", 1e300) == infinity);
  CHECK(evaluate<float>("cvt.rz.f32.f64 %o, %a;", 1e300) == std::numeric_limits<float>::max());
  CHECK(evaluate<double>("cvt.f64.f32 %o, %a;", 0.1f) == static_cast<double>(0.1f));
  CHECK(evaluate<float>("cvt.sat.f32.f32 %o, %a;", 1.5f) == 1.0f);
  CHECK(evaluate<float>("cvt.rn.ftz.f32.f64 %o, %a;", 1e-40) == 0.0f);
  CHECK(evaluate<float>("cvt.rn.f32.f64 %o, %a;", 1e-40) == 1e-40f);
}

TEST_CASE("cvt: f32 to bf16 keeps the upper half, rounded") {
  auto convert = [](float x, const char* direction = "rn") {
    return evaluate<u16>(std::string("cvt.") + direction + ".bf16.f32 %o, %a;", x);
  };
  CHECK(convert(1.0f) == 0x3f80);
  CHECK(convert(1 + 0x1p-8f) == 0x3f80);            // a tie goes to even
  CHECK(convert(1 + 0x1p-7f + 0x1p-8f) == 0x3f82);  // so does this one
  CHECK(convert(1 + 0x1p-8f + 0x1p-20f) == 0x3f81);
  CHECK(convert(1 + 0x1p-8f + 0x1p-20f, "rz") == 0x3f80);
  CHECK(convert(-1 - 0x1p-8f - 0x1p-20f) == 0xbf81);
  CHECK(convert(std::numeric_limits<float>::max()) == 0x7f80);        // rounds up to infinity
  CHECK(convert(std::numeric_limits<float>::max(), "rz") == 0x7f7f);  // the largest number
  CHECK(convert(infinity) == 0x7f80);
  CHECK(convert(-0.0f) == 0x8000);
  CHECK(convert(nan32) == 0x7fff);
  CHECK(convert(0x1p-133f) == 0x0001);  // the least
  CHECK(convert(0x1p-134f) == 0x0000);  // half of it
  CHECK(convert(0x1.8p-134f) == 0x0001);
  CHECK(evaluate<float>("cvt.f32.bf16 %o, %a;", u16{0x3fc0}) == 1.5f);
  CHECK(evaluate<float>("cvt.f32.bf16 %o, %a;", u16{0x0001}) == 0x1p-133f);
  CHECK(evaluate<float>("cvt.f32.bf16 %o, %a;", u16{0xff80}) == -infinity);
  CHECK(std::isnan(evaluate<float>("cvt.f32.bf16 %o, %a;", u16{0x7fc0})));
}

TEST_CASE("cvt: converts normal, subnormal and overflowing f16 numbers") {
  const std::pair<float, u16> exact[] = {{1.0f, 0x3c00},     {-2.5f, 0xc100},    {65504.0f, 0x7bff},
                                         {0x1p-14f, 0x0400}, {0x1p-24f, 0x0001}, {infinity, 0x7c00}};
  for (const std::pair<float, u16>& pair : exact) {
    const float number = pair.first;
    const u16 bits = pair.second;
    CAPTURE(number);
    CHECK(evaluate<u16>("cvt.rn.f16.f32 %o, %a;", number) == bits);
    CHECK(evaluate<float>("cvt.f32.f16 %o, %a;", bits) == number);
  }
  CHECK(evaluate<u16>("cvt.rn.f16.f32 %o, %a;", 65520.0f) == 0x7c00);  // half way to 65536
  CHECK(evaluate<u16>("cvt.rn.f16.f32 %o, %a;", 65519.0f) == 0x7bff);
  CHECK(evaluate<u16>("cvt.rz.f16.f32 %o, %a;", 1e10f) == 0x7bff);
  CHECK(evaluate<u16>("cvt.rn.f16.f64 %o, %a;", 1 + 0x1p-11 + 0x1p-40) == 0x3c01);  // not by way of f32
  CHECK(evaluate<i32>("cvt.rni.s32.f16 %o, %a;", u16{0x4100}) == 2);                // 2.5
}

TEST_CASE("cvt: packs two f32, the first in the upper half") {
  CHECK(evaluate<u32>("cvt.rn.bf16x2.f32 %o, %a, %b;", 1.0f, -2.0f) == 0x3f80c000u);
  CHECK(evaluate<u32>("cvt.rn.f16x2.f32 %o, %a, %b;", 1.0f, -2.0f) == 0x3c00c000u);
}
