// Bitwise logic, selections, moves and comparisons.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// Returns the predicate %p0 that `setp... %p0, ...` or a similar instruction computes.
template <class... S>
bool holds(const std::string& instruction, S... operands) {
  return evaluate<u32>(instruction + " selp.u32 %o, 1, 0, %p0;", operands...) != 0;
}

}  // namespace

TEST_CASE("logic instructions: give known results for every width") {
  CHECK(evaluate<u16>("and.b16 %o, %a, %b;", u16{0xff0f}, u16{0x0fff}) == 0x0f0f);
  CHECK(evaluate<u32>("or.b32 %o, %a, %b;", 0xf0f00000u, 0x0000f0f0u) == 0xf0f0f0f0u);
  CHECK(evaluate<u64>("xor.b64 %o, %a, %b;", ~u64{0}, u64{0xff}) == ~u64{0xff});
  CHECK(evaluate<u16>("not.b16 %o, %a;", u16{0x00ff}) == 0xff00);
  CHECK(evaluate<u64>("not.b64 %o, %a;", u64{1}) == ~u64{1});
  CHECK(evaluate<u32>("cnot.b32 %o, %a;", 0u) == 1);
  CHECK(evaluate<u32>("cnot.b32 %o, %a;", 8u) == 0);
  // The bits above a 16-bit number in its register are ignored.
  CHECK(evaluate<u32>("not.b16 %a, %a; cvt.u32.u16 %o, %a;", u16{0x00ff}) == 0xff00);
}

TEST_CASE("and.pred, or.pred, xor.pred and not.pred: give known results") {
  const std::string two = "setp.ne.u32 %p1, %a, 0; setp.ne.u32 %p2, %b, 0; ";
  for (const u32 a : {0u, 1u}) {
    for (const u32 b : {0u, 1u}) {
      CHECK(holds(two + "and.pred %p0, %p1, %p2;", a, b) == (a && b));
      CHECK(holds(two + "or.pred %p0, %p1, %p2;", a, b) == (a || b));
      CHECK(holds(two + "xor.pred %p0, %p1, %p2;", a, b) == (a != b));
      CHECK(holds(two + "not.pred %p0, %p1;", a, b) == !a);
      CHECK(holds(two + "and.pred %p0, !%p1, %p2;", a, b) == (!a && b));
      CHECK(holds(two + "mov.pred %p0, %p2;", a, b) == (b != 0));
    }
  }
}

TEST_CASE("lop3: looks up every bit in its table") {
  const u32 a = 0b11110000, b = 0b11001100, c = 0b10101010;
  // With these operands the low eight bits of the result are the table itself.
  for (const u32 table : {0x00u, 0x80u, 0xfeu, 0x96u, 0x1bu, 0xcau}) {
    CHECK((evaluate<u32>("lop3.b32 %o, %a, %b, %c, " + std::to_string(table) + ";", a, b, c) & 0xff) == table);
  }
}

TEST_CASE("selp: selects by a predicate") {
  const std::string test = "setp.gt.u32 %p0, %c, 5; ";
  CHECK(evaluate<u32>(test + "selp.b32 %o, %a, %b, %p0;", 1u, 2u, 6u) == 1);
  CHECK(evaluate<u32>(test + "selp.b32 %o, %a, %b, %p0;", 1u, 2u, 5u) == 2);
  CHECK(evaluate<double>(test + "selp.f64 %o, %a, %b, %p0;", 1.5, 2.5, 0u) == 2.5);
  CHECK(evaluate<u16>(test + "selp.b16 %o, %a, %b, %p0;", u16{7}, u16{8}, 9u) == 7);
}

TEST_CASE("mov: packs and unpacks vectors, lowest element first") {
  CHECK(evaluate<u32>("mov.b32 %o, {%a, %b};", u16{0x1234}, u16{0xabcd}) == 0xabcd1234u);
  CHECK(evaluate<u64>("mov.b64 %o, {%a, %b};", 0x11111111u, 0x22222222u) == 0x2222222211111111u);
  CHECK(evaluate<u64>("mov.b64 %o, {%a, %a, %b, %b};", u16{1}, u16{2}) == 0x0002000200010001u);
  CHECK(evaluate<u16>("{.reg .b16 %low; mov.b32 {%low, %o}, %a;}", 0xabcd1234u) == 0xabcd);
  CHECK(evaluate<u32>("mov.b64 {%o, _}, %a;", 0x2222222211111111u) == 0x11111111u);
  CHECK(evaluate<u32>("mov.b64 {%t0, %o}, %a;", 0x2222222211111111u) == 0x22222222u);
}

TEST_CASE("setp: compares signed and unsigned integers") {
  const u32 one = 1, most = ~0u;  // -1
  CHECK(holds("setp.lt.u32 %p0, %a, %b;", one, most));
  CHECK(!holds("setp.lt.s32 %p0, %a, %b;", one, most));
  CHECK(holds("setp.gt.s32 %p0, %a, %b;", one, most));
  CHECK(holds("setp.lo.u32 %p0, %a, %b;", one, most));
  CHECK(holds("setp.hs.u32 %p0, %a, %b;", most, most));
  CHECK(holds("setp.ls.u32 %p0, %a, %b;", most, most));
  CHECK(!holds("setp.hi.u32 %p0, %a, %b;", most, most));
  CHECK(holds("setp.le.s64 %p0, %a, %b;", ~u64{0}, u64{0}));
  CHECK(holds("setp.ge.u64 %p0, %a, %b;", ~u64{0}, u64{0}));
  CHECK(holds("setp.eq.b16 %p0, %a, %b;", u16{5}, u16{5}));
  CHECK(holds("setp.ne.s16 %p0, %a, %b;", u16{5}, u16{6}));
  CHECK(holds("setp.lt.s16 %p0, %a, %b;", u16{0x8000}, u16{0}));
}

TEST_CASE("setp: compares floating-point numbers, ordered and unordered") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* name;
    bool when_less, when_equal, when_greater, when_unordered;
  };
  const Case cases[] = {
      {"eq", false, true, false, false}, {"ne", true, false, true, false},   {"lt", true, false, false, false},
      {"le", true, true, false, false},  {"gt", false, false, true, false},  {"ge", false, true, true, false},
      {"equ", false, true, false, true}, {"neu", true, false, true, true},   {"ltu", true, false, false, true},
      {"leu", true, true, false, true},  {"gtu", false, false, true, true},  {"geu", false, true, true, true},
      {"num", true, true, true, false},  {"nan", false, false, false, true},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const std::string f32 = std::string("setp.") + c.name + ".f32 %p0, %a, %b;";
    CHECK(holds(f32, 1.0f, 2.0f) == c.when_less);
    CHECK(holds(f32, 0.0f, -0.0f) == c.when_equal);
    CHECK(holds(f32, 2.0f, -1.0f) == c.when_greater);
    CHECK(holds(f32, nan, 1.0f) == c.when_unordered);
    CHECK(holds(f32, 1.0f, nan) == c.when_unordered);
    const std::string f64 = std::string("setp.") + c.name + ".f64 %p0, %a, %b;";
    CHECK(holds(f64, 1.0, 1.0 + 1e-15) == c.when_less);
    CHECK(holds(f64, 1.0, static_cast<double>(nan)) == c.when_unordered);
    const std::string bf16 = std::string("setp.") + c.name + ".bf16 %p0, %a, %b;";
    CHECK(holds(bf16, u16{0x3f80}, u16{0x4000}) == c.when_less);
    CHECK(holds(bf16, u16{0x7fc0}, u16{0x4000}) == c.when_unordered);
  }
}

TEST_CASE("setp.ftz: treats subnormal numbers as zero") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  CHECK(holds("setp.gt.f32 %p0, %a, %b;", tiny, 0.0f));
  CHECK(!holds("setp.gt.ftz.f32 %p0, %a, %b;", tiny, 0.0f));
}

TEST_CASE("setp: combines with a predicate, has a second result") {
  const std::string c = "setp.ne.u32 %p3, %c, 0; ";
  for (const u32 third : {0u, 1u}) {
    for (const u32 b : {1u, 3u}) {
      CAPTURE(third);
      CAPTURE(b);
      const bool less = 2u < b, with = third != 0;
      CHECK(holds(c + "setp.lt.and.u32 %p0, %a, %b, %p3;", 2u, b, third) == (less && with));
      CHECK(holds(c + "setp.lt.or.u32 %p0, %a, %b, !%p3;", 2u, b, third) == (less || !with));
      CHECK(holds(c + "setp.lt.xor.u32 %p0, %a, %b, %p3;", 2u, b, third) == (less != with));
      CHECK(holds(c + "setp.lt.and.u32 %p1|%p0, %a, %b, %p3;", 2u, b, third) == (!less && with));
      CHECK(holds("setp.lt.u32 %p1|%p0, %a, %b;", 2u, b, third) == !less);
    }
  }
}

TEST_CASE("testp: distinguishes classes of numbers") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf(""),
              tiny = std::numeric_limits<float>::denorm_min();
  CHECK(holds("testp.finite.f32 %p0, %a;", 1.0f));
  CHECK(!holds("testp.finite.f32 %p0, %a;", infinity));
  CHECK(holds("testp.infinite.f32 %p0, %a;", -infinity));
  CHECK(holds("testp.number.f32 %p0, %a;", infinity));
  CHECK(holds("testp.notanumber.f32 %p0, %a;", nan));
  CHECK(holds("testp.normal.f64 %p0, %a;", 1.0));
  CHECK(!holds("testp.normal.f64 %p0, %a;", 0.0));
  CHECK(holds("testp.subnormal.f32 %p0, %a;", tiny));
}
