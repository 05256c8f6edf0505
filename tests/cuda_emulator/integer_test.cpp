// Tests integer arithmetic and bit fields against the definitions of the PTX ISA.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
__extension__ using i128 = __int128;

namespace {

template <class T>
std::string suffix() {
  return (std::is_signed_v<T> ? ".s" : ".u") + std::to_string(8 * sizeof(T));
}

/// Values at the edges of T and some between.
template <class T>
std::vector<T> samples() {
  using L = std::numeric_limits<T>;
  std::vector<T> values{
      0, 1, 2, 7, static_cast<T>(-1), static_cast<T>(-3), L::min(), L::max(), static_cast<T>(L::max() - 1)};
  std::mt19937_64 random(5);
  for (int i = 0; i < 3; ++i) values.push_back(static_cast<T>(random()));
  return values;
}

/// Checks `name.type %o, %a, %b` for all pairs of samples against a function of exact integers.
template <class T, class F>
void check_binary(const std::string& name, F exact) {
  for (const T a : samples<T>()) {
    for (const T b : samples<T>()) {
      CAPTURE(name);
      CAPTURE(a);
      CAPTURE(b);
      const auto expected = static_cast<T>(exact(i128{a}, i128{b}));
      CHECK(evaluate<T>(name + suffix<T>() + " %o, %a, %b;", a, b) == expected);
    }
  }
}

template <class F>
void for_all_types(F f) {
  f(i16{});
  f(u16{});
  f(i32{});
  f(u32{});
  f(i64{});
  f(u64{});
}

}  // namespace

TEST_CASE("add, sub and mul.lo: wrap around at every width") {
  for_all_types([](auto zero) {
    using T = decltype(zero);
    check_binary<T>("add", [](i128 a, i128 b) { return a + b; });
    check_binary<T>("sub", [](i128 a, i128 b) { return a - b; });
    // The product of two 64-bit numbers can overflow signed 128 bits, so only its low 64 bits are computed.
    check_binary<T>("mul.lo", [](i128 a, i128 b) { return static_cast<u64>(a) * static_cast<u64>(b); });
    check_binary<T>("min", [](i128 a, i128 b) { return std::min(a, b); });
    check_binary<T>("max", [](i128 a, i128 b) { return std::max(a, b); });
  });
}

TEST_CASE("mul.hi: returns the upper half of the product") {
  for_all_types([](auto zero) {
    using T = decltype(zero);
    check_binary<T>("mul.hi", [](i128 a, i128 b) {
      if constexpr (sizeof(T) < 8) return (a * b) >> (8 * sizeof(T));
      // a b = (a1 2^32 + a0) (b1 2^32 + b0), with a0, b0 >= 0
      const i128 base = i128{1} << 32, a0 = a & (base - 1), b0 = b & (base - 1), a1 = a >> 32, b1 = b >> 32;
      const i128 middle = a1 * b0 + ((a0 * b0) >> 32);
      return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & (base - 1))) >> 32);
    });
  });
}

TEST_CASE("mul.wide and mad.wide: keep the whole product") {
  CHECK(evaluate<i32>("mul.wide.s16 %o, %a, %b;", i16{-300}, i16{301}) == -90300);
  CHECK(evaluate<u32>("mul.wide.u16 %o, %a, %b;", u16{65535}, u16{65535}) == 65535u * 65535u);
  CHECK(evaluate<i64>("mul.wide.s32 %o, %a, %b;", i32{-2000000000}, i32{2000000000}) == -4000000000000000000);
  CHECK(evaluate<u64>("mul.wide.u32 %o, %a, %b;", u32{4294967295}, u32{4294967295}) == 4294967295ull * 4294967295ull);
  CHECK(evaluate<i64>("mad.wide.s32 %o, %a, %b, %c;", i32{-3}, i32{5}, i64{1} << 40) == (i64{1} << 40) - 15);
  CHECK(evaluate<u64>("mad.wide.u32 %o, %a, %b, %c;", ~u32{0}, u32{2}, ~u64{0}) == 2 * 4294967295ull - 1);
}

TEST_CASE("mad: adds to either half of the product") {
  CHECK(evaluate<i32>("mad.lo.s32 %o, %a, %b, %c;", i32{-7}, i32{6}, i32{100}) == 58);
  CHECK(evaluate<u64>("mad.lo.u64 %o, %a, %b, %c;", u64{1} << 40, u64{1} << 30, u64{5}) == 5);
  CHECK(evaluate<i32>("mad.hi.s32 %o, %a, %b, %c;", i32{1} << 30, i32{-8}, i32{10}) == 8);
  CHECK(evaluate<u32>("mad.hi.u32 %o, %a, %b, %c;", u32{1} << 31, u32{6}, u32{10}) == 13);
}

TEST_CASE("mul24 and mad24: use the low 24 bits") {
  CHECK(evaluate<u32>("mul24.lo.u32 %o, %a, %b;", 0xff000003u, 0xee000005u) == 15);
  CHECK(evaluate<i32>("mul24.lo.s32 %o, %a, %b;", i32{0x00ffffff}, i32{5}) == -5);
  CHECK(evaluate<u32>("mul24.hi.u32 %o, %a, %b;", 0xffffffu, 0xffffffu) == ((u64{0xffffff} * 0xffffff) >> 16));
  CHECK(evaluate<i32>("mad24.lo.s32 %o, %a, %b, %c;", i32{-4}, i32{6}, i32{1}) == -23);
}

TEST_CASE("div, rem: truncate towards zero, rem has the dividend's sign") {
  CHECK(evaluate<i32>("div.s32 %o, %a, %b;", -7, 2) == -3);
  CHECK(evaluate<i32>("rem.s32 %o, %a, %b;", -7, 2) == -1);
  CHECK(evaluate<i32>("rem.s32 %o, %a, %b;", 7, -2) == 1);
  CHECK(evaluate<u32>("div.u32 %o, %a, %b;", ~0u, 2u) == 0x7fffffffu);
  CHECK(evaluate<i64>("div.s64 %o, %a, %b;", i64{-9}, i64{4}) == -2);
  CHECK(evaluate<u64>("rem.u64 %o, %a, %b;", ~u64{0}, u64{10}) == 5);
  CHECK(evaluate<i16>("div.s16 %o, %a, %b;", i16{-100}, i16{7}) == -14);
  CHECK(evaluate<u16>("rem.u16 %o, %a, %b;", u16{65535}, u16{1000}) == 535);
  // The one quotient that does not fit wraps around.
  CHECK(evaluate<i32>("div.s32 %o, %a, %b;", std::numeric_limits<i32>::min(), -1) == std::numeric_limits<i32>::min());
  CHECK(evaluate<i32>("rem.s32 %o, %a, %b;", std::numeric_limits<i32>::min(), -1) == 0);
}

TEST_CASE("neg, abs and sad: give known results") {
  CHECK(evaluate<i32>("neg.s32 %o, %a;", 5) == -5);
  CHECK(evaluate<i64>("neg.s64 %o, %a;", std::numeric_limits<i64>::min()) == std::numeric_limits<i64>::min());
  CHECK(evaluate<i16>("abs.s16 %o, %a;", i16{-12}) == 12);
  CHECK(evaluate<i32>("abs.s32 %o, %a;", 12) == 12);
  CHECK(evaluate<u32>("sad.u32 %o, %a, %b, %c;", 3u, 10u, 100u) == 107);
  CHECK(evaluate<i32>("sad.s32 %o, %a, %b, %c;", 3, -10, 100) == 113);
}

TEST_CASE("add.sat and sub.sat: clamp to the range of s32") {
  constexpr i32 most = std::numeric_limits<i32>::max(), least = std::numeric_limits<i32>::min();
  CHECK(evaluate<i32>("add.sat.s32 %o, %a, %b;", most, 1) == most);
  CHECK(evaluate<i32>("add.sat.s32 %o, %a, %b;", most, -1) == most - 1);
  CHECK(evaluate<i32>("sub.sat.s32 %o, %a, %b;", least, 1) == least);
  CHECK(evaluate<i32>("sub.sat.s32 %o, %a, %b;", 0, least) == most);
}

TEST_CASE("add.cc and sub.cc: chain through the carry flag") {
  // 128-bit numbers in pairs of 64 bits.
  const std::string add = "add.cc.u64 %o, %a, %c; addc.u64 %o, %b, %d;";
  CHECK(evaluate<u64>(add, ~u64{0}, u64{1}, u64{1}, u64{2}) == 4);
  CHECK(evaluate<u64>(add, ~u64{0} - 1, u64{1}, u64{1}, u64{2}) == 3);
  const std::string sub = "sub.cc.u32 %o, %a, %c; subc.u32 %o, %b, %d;";
  CHECK(evaluate<u32>(sub, 0u, 9u, 1u, 2u) == 6);
  CHECK(evaluate<u32>(sub, 1u, 9u, 1u, 2u) == 7);
  // A carry out that comes from a carry in: ~0 + 0 + 1.
  CHECK(evaluate<u32>("add.cc.u32 %o, %a, %a; addc.cc.u32 %o, %a, 0; addc.u32 %o, 0, 0;", ~0u) == 1);
  CHECK(evaluate<u32>("sub.cc.u32 %o, 0, 1; subc.cc.u32 %o, 0, 0; subc.u32 %o, 5, 0;") == 4);
  // After a subtraction, the flag is set if nothing was borrowed. nvcc's division of 128-bit integers depends on that.
  CHECK(evaluate<u32>("sub.cc.u32 %o, 7, 7; addc.u32 %o, 0, 0;") == 1);
  CHECK(evaluate<u32>("sub.cc.u32 %o, 7, 8; addc.u32 %o, 0, 0;") == 0);
}

TEST_CASE("mad.cc: products chain through the carry flag") {
  // (a 2^32 + b) c, in three words: the product b c, plus the product a c shifted by one word.
  const u32 a = 0xfedcba98, b = 0x76543210, c = 0x89abcdef;
  const unsigned long long low = u64{b} * c, high = u64{a} * c + (low >> 32);
  const std::string chain =
      "mul.lo.u32 %t0, %b, %c; mul.hi.u32 %t1, %b, %c; mad.lo.cc.u32 %t1, %a, %c, %t1;\n"
      "madc.hi.u32 %t2, %a, %c, 0; mov.u32 %o, ";
  CHECK(evaluate<u32>(chain + "%t0;", a, b, c) == static_cast<u32>(low));
  CHECK(evaluate<u32>(chain + "%t1;", a, b, c) == static_cast<u32>(high));
  CHECK(evaluate<u32>(chain + "%t2;", a, b, c) == static_cast<u32>(high >> 32));
  CHECK(evaluate<u64>("mad.lo.cc.u64 %o, %a, %a, %a; madc.hi.cc.u64 %o, %a, %a, 5; addc.u64 %o, %o, 0;", ~u64{0}) == 5);
}

TEST_CASE("shl and shr: clamp counts beyond the width") {
  CHECK(evaluate<u32>("shl.b32 %o, %a, %b;", 3u, 31u) == 0x80000000u);
  CHECK(evaluate<u32>("shl.b32 %o, %a, %b;", 3u, 32u) == 0);
  CHECK(evaluate<u64>("shl.b64 %o, %a, %b;", u64{3}, 40u) == u64{3} << 40);
  CHECK(evaluate<u64>("shl.b64 %o, %a, %b;", u64{3}, 64u) == 0);
  CHECK(evaluate<u16>("shl.b16 %o, %a, %b;", u16{0x8001}, 1u) == 2);
  CHECK(evaluate<u16>("shl.b16 %o, %a, %b;", u16{1}, 16u) == 0);
  CHECK(evaluate<u32>("shr.u32 %o, %a, %b;", 0x80000000u, 31u) == 1);
  CHECK(evaluate<u32>("shr.u32 %o, %a, %b;", ~0u, 32u) == 0);
  CHECK(evaluate<i32>("shr.s32 %o, %a, %b;", -8, 1u) == -4);
  CHECK(evaluate<i32>("shr.s32 %o, %a, %b;", -8, 100u) == -1);
  CHECK(evaluate<i32>("shr.s32 %o, %a, %b;", 8, 100u) == 0);
  CHECK(evaluate<i16>("shr.s16 %o, %a, %b;", i16{-32768}, 15u) == -1);
  CHECK(evaluate<i64>("shr.s64 %o, %a, %b;", i64{-1} << 62, 61u) == -2);
  CHECK(evaluate<u64>("shr.b64 %o, %a, %b;", ~u64{0}, 63u) == 1);
}

TEST_CASE("shf: shifts a register pair, wraps or clamps the count") {
  const u32 low = 0x89abcdef, high = 0x01234567;
  const u64 both = u64{high} << 32 | low;
  for (const u32 count : {0u, 1u, 7u, 31u, 32u, 33u, 60u}) {
    CAPTURE(count);
    const u32 wrapped = count % 32, clamped = std::min(count, 32u);
    auto upper = [&](u32 n) { return static_cast<u32>((both << n) >> 32); };
    auto lower = [&](u32 n) { return static_cast<u32>(both >> n); };
    CHECK(evaluate<u32>("shf.l.wrap.b32 %o, %a, %b, %c;", low, high, count) == upper(wrapped));
    CHECK(evaluate<u32>("shf.l.clamp.b32 %o, %a, %b, %c;", low, high, count) == (count >= 32 ? low : upper(clamped)));
    CHECK(evaluate<u32>("shf.r.wrap.b32 %o, %a, %b, %c;", low, high, count) == lower(wrapped));
    CHECK(evaluate<u32>("shf.r.clamp.b32 %o, %a, %b, %c;", low, high, count) == (count >= 32 ? high : lower(clamped)));
  }
}

TEST_CASE("popc, clz, bfind and brev: give known results") {
  CHECK(evaluate<u32>("popc.b32 %o, %a;", 0xf00f0001u) == 9);
  CHECK(evaluate<u32>("popc.b64 %o, %a;", ~u64{0}) == 64);
  CHECK(evaluate<u32>("clz.b32 %o, %a;", 0x00010000u) == 15);
  CHECK(evaluate<u32>("clz.b32 %o, %a;", 0u) == 32);
  CHECK(evaluate<u32>("clz.b64 %o, %a;", u64{1}) == 63);
  CHECK(evaluate<u32>("clz.b64 %o, %a;", u64{0}) == 64);
  CHECK(evaluate<u32>("bfind.u32 %o, %a;", 0x00010000u) == 16);
  CHECK(evaluate<u32>("bfind.u32 %o, %a;", 0u) == ~0u);
  CHECK(evaluate<u32>("bfind.s32 %o, %a;", -1) == ~0u);
  CHECK(evaluate<u32>("bfind.s32 %o, %a;", -5) == 2);  // ...11111011: the first bit that is not the sign
  CHECK(evaluate<u32>("bfind.shiftamt.u32 %o, %a;", 0x00010000u) == 15);
  CHECK(evaluate<u32>("bfind.u64 %o, %a;", u64{1} << 40) == 40);
  CHECK(evaluate<u32>("bfind.shiftamt.s64 %o, %a;", i64{0}) == ~0u);
  CHECK(evaluate<u32>("brev.b32 %o, %a;", 0x80000001u) == 0x80000001u);
  CHECK(evaluate<u32>("brev.b32 %o, %a;", 0x00000006u) == 0x60000000u);
  CHECK(evaluate<u64>("brev.b64 %o, %a;", u64{2}) == u64{1} << 62);
}

TEST_CASE("bfe and bfi: equal the ISA's definition bit by bit") {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    const u64 a = random(), b = random();
    const auto position = static_cast<u32>(random() % 70), length = static_cast<u32>(random() % 70);
    CAPTURE(position);
    CAPTURE(length);
    auto extract = [&](auto value, int width, bool is_signed) {
      const int last = width - 1, begin = static_cast<int>(position), count = static_cast<int>(length);
      const bool sign = is_signed && count > 0 && (value >> std::min(begin + count - 1, last) & 1);
      decltype(value) field = 0;
      for (int i = 0; i <= last; ++i) {
        const bool bit = i < count && begin + i <= last ? value >> (begin + i) & 1 : sign;
        field |= static_cast<decltype(value)>(bit) << i;
      }
      return field;
    };
    auto insert = [&](auto field, auto into, int width) {
      const int begin = static_cast<int>(position), count = static_cast<int>(length);
      using T = decltype(field);
      for (int i = 0; i < count && begin + i < width; ++i) {
        into = (into & ~(T{1} << (begin + i))) | (field >> i & 1) << (begin + i);
      }
      return into;
    };
    const auto a32 = static_cast<u32>(a), b32 = static_cast<u32>(b);
    CHECK(evaluate<u32>("bfe.u32 %o, %a, %b, %c;", a32, position, length) == extract(a32, 32, false));
    CHECK(evaluate<u32>("bfe.s32 %o, %a, %b, %c;", a32, position, length) == extract(a32, 32, true));
    CHECK(evaluate<u64>("bfe.u64 %o, %a, %b, %c;", a, position, length) == extract(a, 64, false));
    CHECK(evaluate<u64>("bfe.s64 %o, %a, %b, %c;", a, position, length) == extract(a, 64, true));
    CHECK(evaluate<u32>("bfi.b32 %o, %a, %b, %c, %d;", a32, b32, position, length) == insert(a32, b32, 32));
    CHECK(evaluate<u64>("bfi.b64 %o, %a, %b, %c, %d;", a, b, position, length) == insert(a, b, 64));
  }
}

TEST_CASE("bmsk: builds a mask, clamps or wraps position and length") {
  CHECK(evaluate<u32>("bmsk.clamp.b32 %o, %a, %b;", 4u, 8u) == 0xff0u);
  CHECK(evaluate<u32>("bmsk.clamp.b32 %o, %a, %b;", 0u, 40u) == ~0u);
  CHECK(evaluate<u32>("bmsk.clamp.b32 %o, %a, %b;", 32u, 8u) == 0);
  CHECK(evaluate<u32>("bmsk.wrap.b32 %o, %a, %b;", 36u, 40u) == 0xff0u);
}

TEST_CASE("prmt: selects bytes in every mode") {
  const u32 a = 0x33221100, b = 0x77665544;  // byte i of {b, a} is 0x11 i
  auto bytes = [](u32 b3, u32 b2, u32 b1, u32 b0) { return 0x11 * (b3 << 24 | b2 << 16 | b1 << 8 | b0); };
  CHECK(evaluate<u32>("prmt.b32 %o, %a, %b, %c;", a, b, 0x7531u) == bytes(7, 5, 3, 1));
  // 8 in a selector replicates the sign of the byte.
  CHECK(evaluate<u32>("prmt.b32 %o, %a, %b, %c;", 0x000080ffu, 0u, 0xa981u) == 0x00ff'ff80u);
  CHECK(evaluate<u32>("prmt.b32.f4e %o, %a, %b, %c;", a, b, 0u) == bytes(3, 2, 1, 0));
  CHECK(evaluate<u32>("prmt.b32.f4e %o, %a, %b, %c;", a, b, 3u) == bytes(6, 5, 4, 3));
  CHECK(evaluate<u32>("prmt.b32.b4e %o, %a, %b, %c;", a, b, 0u) == bytes(5, 6, 7, 0));
  CHECK(evaluate<u32>("prmt.b32.b4e %o, %a, %b, %c;", a, b, 2u) == bytes(7, 0, 1, 2));
  CHECK(evaluate<u32>("prmt.b32.rc8 %o, %a, %b, %c;", a, b, 2u) == bytes(2, 2, 2, 2));
  CHECK(evaluate<u32>("prmt.b32.ecl %o, %a, %b, %c;", a, b, 1u) == bytes(3, 2, 1, 1));
  CHECK(evaluate<u32>("prmt.b32.ecl %o, %a, %b, %c;", a, b, 3u) == bytes(3, 3, 3, 3));
  CHECK(evaluate<u32>("prmt.b32.ecr %o, %a, %b, %c;", a, b, 0u) == bytes(0, 0, 0, 0));
  CHECK(evaluate<u32>("prmt.b32.ecr %o, %a, %b, %c;", a, b, 2u) == bytes(2, 2, 1, 0));
  CHECK(evaluate<u32>("prmt.b32.rc16 %o, %a, %b, %c;", a, b, 0u) == bytes(1, 0, 1, 0));
  CHECK(evaluate<u32>("prmt.b32.rc16 %o, %a, %b, %c;", a, b, 1u) == bytes(3, 2, 3, 2));
}

TEST_CASE("dp4a: multiplies bytes of either sign and adds") {
  CHECK(evaluate<i32>("dp4a.s32.s32 %o, %a, %b, %c;", 0x01ff02feu, 0x03030303u, 10) == 10 + 3 * (1 - 1 + 2 - 2));
  CHECK(evaluate<u32>("dp4a.u32.u32 %o, %a, %b, %c;", 0x01ff02feu, 0x03030303u, 10u) == 10 + 3 * (1 + 255 + 2 + 254));
  CHECK(evaluate<i32>("dp4a.u32.s32 %o, %a, %b, %c;", 0x000000ffu, 0x000000ffu, 0) == -255);
  CHECK(evaluate<i32>("dp4a.s32.u32 %o, %a, %b, %c;", 0x000000ffu, 0x000000ffu, 0) == -255);
}
