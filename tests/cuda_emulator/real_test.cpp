// Tests floating-point arithmetic: exact results that are rounded once, in the given direction.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

const float tiny = std::numeric_limits<float>::denorm_min();

/// Returns `exact` rounded to T in one of the directions rn, rz, rm, rp. It compares numbers and does not use the
/// rounding mode of the host.
template <class T, class Exact>
T rounded(Exact exact, const std::string& direction) {
  const T nearest = static_cast<T>(exact);
  const T below =
      static_cast<Exact>(nearest) <= exact ? nearest : std::nextafter(nearest, -std::numeric_limits<T>::infinity());
  const T above =
      static_cast<Exact>(nearest) >= exact ? nearest : std::nextafter(nearest, std::numeric_limits<T>::infinity());
  if (direction == "rm") return below;
  if (direction == "rp") return above;
  if (direction == "rz") return exact > 0 ? below : above;
  return nearest;
}

const std::vector<std::string> directions{"rn", "rz", "rm", "rp"};

/// Returns the bf16 number that is the upper half of a float.
u16 bf16(float x) { return static_cast<u16>(std::bit_cast<u32>(x) >> 16); }
float from_bf16(u16 bits) { return std::bit_cast<float>(u32{bits} << 16); }

}  // namespace

TEST_CASE("add, sub, mul of f32: round correctly in all directions") {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> number(-4, 4);
  for (int i = 0; i < 12; ++i) {
    const float a = number(random), b = std::ldexp(number(random), -static_cast<int>(random() % 24));
    CAPTURE(a);
    CAPTURE(b);
    for (const std::string& direction : directions) {
      CAPTURE(direction);
      const double x = a, y = b;  // sums of numbers this close, and products, are exact in double
      CHECK(evaluate<float>("add." + direction + ".f32 %o, %a, %b;", a, b) == rounded<float>(x + y, direction));
      CHECK(evaluate<float>("sub." + direction + ".f32 %o, %a, %b;", a, b) == rounded<float>(x - y, direction));
      CHECK(evaluate<float>("mul." + direction + ".f32 %o, %a, %b;", a, b) == rounded<float>(x * y, direction));
    }
  }
}

TEST_CASE("add, mul of f64: round correctly in all directions") {
  // Exact in a long double of 64 bits.
  const double a = 1 + 0x1p-30, b = 1 + 0x1p-31, small = 0x1p-60;
  for (const double sign : {1.0, -1.0}) {
    for (const std::string& direction : directions) {
      CAPTURE(direction);
      const long double product = static_cast<long double>(a) * b * sign, total = (1.0L + small) * sign;
      CHECK(evaluate<double>("mul." + direction + ".f64 %o, %a, %b;", a * sign, b) ==
            rounded<double>(product, direction));
      CHECK(evaluate<double>("add." + direction + ".f64 %o, %a, %b;", sign, small * sign) ==
            rounded<double>(total, direction));
    }
  }
}

TEST_CASE("div, rcp and sqrt: round correctly in all four directions") {
  for (const float a : {1.0f, -2.0f, 10.0f, 0.7f}) {
    for (const float b : {3.0f, 7.0f, 0.1f}) {
      for (const std::string& direction : directions) {
        CAPTURE(a);
        CAPTURE(b);
        CAPTURE(direction);
        // A quotient of two floats that is not a float itself differs from every float by more than the rounding error
        // of double. So the quotient in double is exact enough to be rounded again.
        const double quotient = static_cast<double>(a) / static_cast<double>(b), inverse = 1 / static_cast<double>(b);
        CHECK(evaluate<float>("div." + direction + ".f32 %o, %a, %b;", a, b) == rounded<float>(quotient, direction));
        CHECK(evaluate<float>("rcp." + direction + ".f32 %o, %a;", b) == rounded<float>(inverse, direction));
        CHECK(evaluate<float>("sqrt." + direction + ".f32 %o, %a;", b) ==
              rounded<float>(std::sqrt(static_cast<double>(b)), direction));
      }
    }
  }
  CHECK(evaluate<double>("div.rn.f64 %o, %a, %b;", 1.0, 3.0) == 1.0 / 3.0);
  CHECK(evaluate<double>("sqrt.rn.f64 %o, %a;", 2.0) == std::sqrt(2.0));
  CHECK(evaluate<float>("div.rn.f32 %o, %a, %b;", 1.0f, 0.0f) == infinity);
}

TEST_CASE("fma: rounds once") {
  // (1 + e) (1 - e) - 1 = -e^2, which a rounded product loses.
  const float e = 0x1p-13f;
  CHECK(evaluate<float>("fma.rn.f32 %o, %a, %b, %c;", 1 + e, 1 - e, -1.0f) == -0x1p-26f);
  CHECK(evaluate<double>("fma.rn.f64 %o, %a, %b, %c;", 1 + 0x1p-30, 1 - 0x1p-30, -1.0) == -0x1p-60);
  CHECK(evaluate<float>("fma.rp.f32 %o, %a, %b, %c;", tiny, tiny, 1.0f) == std::nextafter(1.0f, 2.0f));
  CHECK(evaluate<float>("fma.rz.f32 %o, %a, %b, %c;", tiny, tiny, 1.0f) == 1.0f);
  CHECK(evaluate<float>("fma.rm.f32 %o, %a, %b, %c;", -tiny, tiny, 1.0f) == std::nextafter(1.0f, 0.0f));
}

TEST_CASE("fma of 16 bits: rounds once") {
  // bf16 has 8 bits: 1 + 2^-8 lies half way between 1 and 1 + 2^-7, and the slightest addend decides.
  const u16 one = bf16(1), half_step = bf16(0x1p-8f), next = bf16(1 + 0x1p-7f);
  CHECK(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", one, half_step, one) == one);  // the tie goes to even
  CHECK(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", half_step, next, one) == next);
  // 7 * 37 = 259 and 9 * 29 = 261 lie half way between two bf16 numbers. An addend decides, although it is too small to
  // change the sum in double.
  const u16 below = bf16(-0x1p-60f), above = bf16(0x1p-60f);
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", bf16(7), bf16(37), bf16(0))) == 260.0f);
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", bf16(7), bf16(37), below)) == 258.0f);
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", bf16(9), bf16(29), bf16(0))) == 260.0f);
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", bf16(9), bf16(29), above)) == 262.0f);
  // 129 * 129 = 16641 = 16640 + 1: between 16640 and 16768 in steps of 128, a tie needs +63.
  const u16 a = bf16(129), c = bf16(63);
  CHECK(from_bf16(a) == 129.0f);
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", a, a, c)) == 16640.0f);            // 16704: tie, to even
  CHECK(from_bf16(evaluate<u16>("fma.rn.bf16 %o, %a, %b, %c;", a, a, bf16(63.5f))) == 16768.0f);  // above it
  // f16: 1.5 * 2^-12 + 1, with 2^-11 half of a step.
  CHECK(evaluate<u16>("fma.rn.f16 %o, %a, %b, %c;", u16{0x3e00}, u16{0x0c00}, u16{0x3c00}) == 0x3c00);
  CHECK(evaluate<u16>("fma.rn.f16 %o, %a, %b, %c;", u16{0x3e00}, u16{0x1000}, u16{0x3c00}) == 0x3c01);
}

TEST_CASE("16-bit add, sub, mul, neg, abs: work single and packed") {
  const u16 one = 0x3c00, two = 0x4000, three = 0x4200, six = 0x4600;  // f16
  CHECK(evaluate<u16>("add.f16 %o, %a, %b;", one, two) == three);
  CHECK(evaluate<u16>("sub.rn.f16 %o, %a, %b;", three, two) == one);
  CHECK(evaluate<u16>("mul.f16 %o, %a, %b;", three, two) == six);
  CHECK(evaluate<u16>("neg.f16 %o, %a;", one) == 0xbc00);
  CHECK(evaluate<u16>("abs.bf16 %o, %a;", bf16(-1.5f)) == bf16(1.5f));
  CHECK(evaluate<u16>("add.rn.bf16 %o, %a, %b;", bf16(1.5f), bf16(0.25f)) == bf16(1.75f));
  CHECK(evaluate<u16>("add.f16 %o, %a, %b;", u16{0x7bff}, u16{0x7bff}) == 0x7c00);  // 65504 + 65504: infinity
  CHECK(evaluate<u16>("mul.f16 %o, %a, %b;", u16{0x0001}, u16{0x3800}) == 0);       // half of the least: to even
  CHECK(evaluate<u16>("mul.f16 %o, %a, %b;", u16{0x0003}, u16{0x3800}) == 2);
  auto pair = [](u16 low, u16 high) { return u32{high} << 16 | low; };
  CHECK(evaluate<u32>("add.f16x2 %o, %a, %b;", pair(one, two), pair(two, one)) == pair(three, three));
  CHECK(evaluate<u32>("fma.rn.bf16x2 %o, %a, %b, %c;", pair(bf16(2), bf16(3)), pair(bf16(4), bf16(5)),
                      pair(bf16(1), bf16(-1))) == pair(bf16(9), bf16(14)));
  CHECK(evaluate<u32>("neg.f16x2 %o, %a;", pair(one, 0xbc00)) == pair(0xbc00, one));
  CHECK(evaluate<u32>("max.f16x2 %o, %a, %b;", pair(one, three), pair(two, two)) == pair(two, three));
}

TEST_CASE("ftz: flushes subnormal f32 operands and results, keeps sign") {
  CHECK(evaluate<float>("add.f32 %o, %a, %b;", tiny, tiny) == 2 * tiny);
  CHECK(evaluate<float>("add.ftz.f32 %o, %a, %b;", tiny, tiny) == 0);
  const float least = std::numeric_limits<float>::min();
  CHECK(evaluate<float>("mul.f32 %o, %a, %b;", least, -0.5f) == -least / 2);
  const float flushed = evaluate<float>("mul.ftz.f32 %o, %a, %b;", least, -0.5f);
  CHECK(flushed == 0);
  CHECK(std::signbit(flushed));
  CHECK(evaluate<float>("fma.rn.ftz.f32 %o, %a, %b, %c;", tiny, 1e38f, 1.0f) == 1.0f);
}

TEST_CASE("sat: clamps to [0, 1] and turns NaN into 0") {
  CHECK(evaluate<float>("add.sat.f32 %o, %a, %b;", 0.75f, 0.75f) == 1);
  CHECK(evaluate<float>("add.sat.f32 %o, %a, %b;", 0.25f, -0.75f) == 0);
  CHECK(evaluate<float>("add.sat.f32 %o, %a, %b;", 0.25f, 0.5f) == 0.75f);
  CHECK(evaluate<float>("mul.sat.f32 %o, %a, %b;", nan32, 1.0f) == 0);
  CHECK(evaluate<float>("fma.rn.sat.f32 %o, %a, %b, %c;", 2.0f, 3.0f, -5.5f) == 0.5f);
}

TEST_CASE("min and max: prefer numbers to NaN, order zeros") {
  CHECK(evaluate<float>("min.f32 %o, %a, %b;", 1.0f, -2.0f) == -2.0f);
  CHECK(evaluate<float>("max.f32 %o, %a, %b;", nan32, 2.0f) == 2.0f);
  CHECK(evaluate<float>("min.f32 %o, %a, %b;", 2.0f, nan32) == 2.0f);
  CHECK(evaluate<u32>("max.f32 %o, %a, %b;", nan32, nan32) == 0x7fffffff);
  CHECK(evaluate<u32>("max.NaN.f32 %o, %a, %b;", nan32, 2.0f) == 0x7fffffff);
  CHECK(evaluate<float>("max.NaN.f32 %o, %a, %b;", 1.0f, 2.0f) == 2.0f);
  CHECK(!std::signbit(evaluate<float>("max.f32 %o, %a, %b;", -0.0f, 0.0f)));
  CHECK(!std::signbit(evaluate<float>("max.f32 %o, %a, %b;", 0.0f, -0.0f)));
  CHECK(std::signbit(evaluate<float>("min.f32 %o, %a, %b;", -0.0f, 0.0f)));
  CHECK(std::signbit(evaluate<float>("min.f32 %o, %a, %b;", 0.0f, -0.0f)));
  CHECK(evaluate<double>("max.f64 %o, %a, %b;", nan64, -1.0) == -1.0);
}

TEST_CASE("NaN of f32: results are the canonical NaN") {
  CHECK(evaluate<u32>("add.f32 %o, %a, %b;", infinity, -infinity) == 0x7fffffff);
  CHECK(evaluate<u32>("mul.f32 %o, %a, %b;", std::bit_cast<float>(0xffc12345u), 1.0f) == 0x7fffffff);
  CHECK(std::isnan(evaluate<double>("mul.f64 %o, %a, %b;", nan64, 1.0)));
}

TEST_CASE("neg, abs and copysign: change only the sign bit") {
  CHECK(evaluate<u32>("neg.f32 %o, %a;", 0.0f) == 0x80000000u);
  CHECK(evaluate<double>("neg.f64 %o, %a;", -2.5) == 2.5);
  CHECK(evaluate<float>("abs.f32 %o, %a;", -infinity) == infinity);
  CHECK(evaluate<double>("abs.f64 %o, %a;", -2.5) == 2.5);
  CHECK(evaluate<float>("copysign.f32 %o, %a, %b;", -1.0f, 3.0f) == -3.0f);
  CHECK(evaluate<double>("copysign.f64 %o, %a, %b;", 1.0, -3.0) == 3.0);
}

TEST_CASE("approximate functions: relative error is at most 2^-23") {
  // Devices promise 2 ulp (ex2, lg2 beyond [0.5, 2], sqrt, rcp, rsqrt, div) or an absolute error of 2^-20 (sin, cos).
  constexpr double ulp = 0x1p-23;
  auto close = [](double got, double expected) { return std::fabs(got - expected) <= ulp * std::fabs(expected); };
  for (const float x : {0.1f, 0.5f, 1.0f, 1.7f, 3.0f, 10.0f}) {
    CAPTURE(x);
    const double d = x;
    CHECK(close(evaluate<float>("ex2.approx.f32 %o, %a;", x), std::exp2(d)));
    CHECK(close(evaluate<float>("ex2.approx.ftz.f32 %o, %a;", -x), std::exp2(-d)));
    CHECK(close(evaluate<float>("lg2.approx.f32 %o, %a;", x), std::log2(d)));
    CHECK(close(evaluate<float>("rcp.approx.f32 %o, %a;", x), 1 / d));
    CHECK(close(evaluate<float>("rsqrt.approx.f32 %o, %a;", x), 1 / std::sqrt(d)));
    CHECK(close(evaluate<float>("sqrt.approx.f32 %o, %a;", x), std::sqrt(d)));
    CHECK(close(evaluate<float>("sin.approx.f32 %o, %a;", x), std::sin(d)));
    CHECK(close(evaluate<float>("cos.approx.f32 %o, %a;", x), std::cos(d)));
    CHECK(close(evaluate<float>("tanh.approx.f32 %o, %a;", x), std::tanh(d)));
    CHECK(close(evaluate<float>("div.approx.f32 %o, %a, %b;", x, 3.0f), d / 3));
    CHECK(close(evaluate<float>("div.full.f32 %o, %a, %b;", x, 3.0f), d / 3));
    CHECK(close(evaluate<double>("rsqrt.approx.f64 %o, %a;", d), 1 / std::sqrt(d)));
  }
  CHECK(evaluate<float>("lg2.approx.f32 %o, %a;", 0.0f) == -infinity);
  CHECK(evaluate<float>("rcp.approx.ftz.f32 %o, %a;", tiny) == infinity);
  CHECK(std::isnan(evaluate<float>("sqrt.approx.f32 %o, %a;", -1.0f)));
  CHECK(evaluate<u16>("ex2.approx.ftz.bf16 %o, %a;", bf16(3)) == bf16(8));
}

TEST_CASE("instructions with equal names: the type selects the arithmetic") {
  CHECK(evaluate<u32>("add.u32 %o, %a, %b;", 1.0f, 1.0f) == 0x7f000000u);
  CHECK(evaluate<float>("add.f32 %o, %a, %b;", 1.0f, 1.0f) == 2.0f);
}
