// Tests the collectives of a warp against the definitions of the PTX ISA.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// Runs `shfl.sync.<mode>` on the value 100 + lane. In %d9, the low half is the result and the high half the predicate.
std::vector<u64> shuffled(const std::string& mode, u32 b, u32 c) {
  return each_thread("add.u32 %r1, %r0, 100; shfl.sync." + mode + ".b32 %r2|%p1, %r1, " + std::to_string(b) + ", " +
                     std::to_string(c) + ", 0xffffffff; selp.u32 %r3, 1, 0, %p1; mov.b64 %d9, {%r2, %r3};");
}

u64 value_and_predicate(int source, bool in_range) { return static_cast<u64>(100 + source) | u64{in_range} << 32; }

/// PTX that sets %r1 to `number(lane)`. Not all lanes have the same number.
const std::string number_text = "mul.lo.u32 %r1, %r0, 37; and.b32 %r1, %r1, 0x1c; xor.b32 %r1, %r1, 0x80000000;\n";
u32 number(u32 lane) { return (lane * 37 & 0x1c) ^ 0x80000000; }

}  // namespace

TEST_CASE("shfl: all four modes work over warps and segments") {
  // For a width, __shfl_*_sync of CUDA C++ passes this value: the clamp and, from bit 8, the mask of the segment.
  for (const int width : {32, 8, 2}) {
    CAPTURE(width);
    const u32 segment = static_cast<u32>(32 - width) << 8, clamp = segment | 31;
    for (const int distance : {0, 1, 3, 7, 31}) {
      CAPTURE(distance);
      const auto d = static_cast<u32>(distance);
      const auto up = shuffled("up", d, segment), down = shuffled("down", d, clamp),
                 butterfly = shuffled("bfly", d, clamp), index = shuffled("idx", d, clamp);
      for (int lane = 0; lane < 32; ++lane) {
        CAPTURE(lane);
        const int first = lane / width * width, last = first + width - 1, partner = lane ^ distance;
        auto expected = [&](int source, bool in_range) {
          return value_and_predicate(in_range ? source : lane, in_range);
        };
        CHECK(up[lane] == expected(lane - distance, lane - distance >= first));
        CHECK(down[lane] == expected(lane + distance, lane + distance <= last));
        CHECK(butterfly[lane] == expected(partner, partner <= last));
        CHECK(index[lane] == expected(first + distance % width, true));
      }
    }
  }
}

TEST_CASE("shfl: reads poison from lanes outside the mask") {
  const auto got = each_thread(
      "mov.u64 %d9, 7; setp.lt.u32 %p1, %r0, 4; @!%p1 bra END; add.u32 %r1, %r0, 100;\n"
      "shfl.sync.idx.b32 %r2, %r1, %r0, 31, 0xf; shfl.sync.down.b32 %r3, %r1, 2, 31, 0xf; mov.b64 %d9, {%r2, "
      "%r3};\nEND:");
  for (u32 lane = 0; lane < 32; ++lane) {
    const u64 below = lane < 2 ? 102 + lane : 0xdeadbeef;
    CHECK(got[lane] == (lane < 4 ? (below << 32 | (100 + lane)) : 7));
  }
}

TEST_CASE("vote: all four modes return known results") {
  auto vote = [](const std::string& mode, const std::string& condition) {
    const bool ballot = mode == "ballot.b32";
    return each_thread(condition + " vote.sync." + mode + (ballot ? " %r2" : " %p2") + ", %p1, 0xffffffff;\n" +
                       (ballot ? "" : "selp.u32 %r2, 1, 0, %p2;") + "cvt.u64.u32 %d9, %r2;");
  };
  const std::string some = "and.b32 %r1, %r0, 3; setp.eq.u32 %p1, %r1, 1;", always = "setp.lt.u32 %p1, %r0, 32;",
                    never = "setp.gt.u32 %p1, %r0, 32;";
  for (u32 lane = 0; lane < 32; ++lane) {
    CHECK(vote("ballot.b32", some)[lane] == 0x22222222);
    CHECK(vote("any.pred", some)[lane] == 1);
    CHECK(vote("any.pred", never)[lane] == 0);
    CHECK(vote("all.pred", some)[lane] == 0);
    CHECK(vote("all.pred", always)[lane] == 1);
    CHECK(vote("uni.pred", some)[lane] == 0);
    CHECK(vote("uni.pred", never)[lane] == 1);
    CHECK(vote("uni.pred", always)[lane] == 1);
  }
  const auto inverted = each_thread(some + " vote.sync.ballot.b32 %r2, !%p1, 0xffffffff; cvt.u64.u32 %d9, %r2;");
  CHECK(inverted[5] == 0xdddddddd);
}

TEST_CASE("match: finds the lanes with the same value") {
  const auto any = each_thread(number_text + "match.any.sync.b32 %r2, %r1, 0xffffffff; cvt.u64.u32 %d9, %r2;");
  const auto wide = each_thread(number_text +
                                "mov.b64 %d3, {%r0, %r1}; shr.u64 %d3, %d3, 32;\n"
                                "match.any.sync.b64 %r2, %d3, 0xffffffff; cvt.u64.u32 %d9, %r2;");
  for (u32 lane = 0; lane < 32; ++lane) {
    u32 expected = 0;
    for (u32 other = 0; other < 32; ++other) expected |= static_cast<u32>(number(other) == number(lane)) << other;
    CHECK(any[lane] == expected);
    CHECK(wide[lane] == expected);
  }
  auto all = [](const std::string& value) {
    return each_thread(
        value + " match.all.sync.b32 %r2|%p1, %r1, 0xffffffff; selp.u32 %r3, 1, 0, %p1; mov.b64 %d9, {%r2, %r3};")[9];
  };
  CHECK(all("mov.u32 %r1, 5;") == (u64{1} << 32 | 0xffffffff));
  CHECK(all("mov.u32 %r1, %r0;") == 0);
}

TEST_CASE("redux: reduces over the lanes of its mask") {
  auto reduce = [](const std::string& operation) {
    return each_thread(number_text + "redux.sync." + operation + " %r2, %r1, 0xffffffff; cvt.u64.u32 %d9, %r2;")[3];
  };
  u32 sum = 0, least = ~0u, most = 0, both = ~0u, either = 0, parity = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 x = number(lane);
    sum += x;
    least = std::min(least, x);
    most = std::max(most, x);
    both &= x;
    either |= x;
    parity ^= x;
  }
  CHECK(reduce("add.u32") == sum);
  CHECK(reduce("add.s32") == sum);
  CHECK(reduce("min.u32") == least);
  CHECK(reduce("max.u32") == most);
  CHECK(reduce("and.b32") == both);
  CHECK(reduce("or.b32") == either);
  CHECK(reduce("xor.b32") == parity);
  // As signed numbers, lane 0 has a value below zero and all others have values above zero.
  const std::string sign = "setp.eq.u32 %p1, %r0, 0; selp.u32 %r1, 0xfffffff6, 4, %p1; ";
  CHECK(each_thread(sign + "redux.sync.min.s32 %r2, %r1, 0xffffffff; cvt.s64.s32 %d9, %r2;")[8] ==
        static_cast<u64>(-10));
  CHECK(each_thread(sign + "redux.sync.max.s32 %r2, %r1, 0xffffffff; cvt.s64.s32 %d9, %r2;")[8] == 4);
}

TEST_CASE("elect, activemask: return the first lane and the active lanes") {
  const auto elected = each_thread(
      "mov.u64 %d9, 7; setp.lt.u32 %p1, %r0, 3; @%p1 bra END; elect.sync %r1|%p2, 0xfffffff8; selp.u32 %r2, 1, 0, "
      "%p2;\n"
      "mov.b64 %d9, {%r1, %r2};\nEND:");
  for (u32 lane = 3; lane < 32; ++lane) CHECK(elected[lane] == (u64{lane == 3} << 32 | 3));
  const auto active = each_thread(
      "setp.lt.u32 %p1, %r0, 10; @%p1 bra LOW; activemask.b32 %r1; bra END;\n"
      "LOW: activemask.b32 %r1;\nEND: cvt.u64.u32 %d9, %r1;");
  for (u32 lane = 0; lane < 32; ++lane) CHECK(active[lane] == (lane < 10 ? 0x3ff : 0xfffffc00));
}

TEST_CASE("collectives: lanes of disjoint masks do not wait mutually") {
  const auto got = each_thread(
      "setp.lt.u32 %p1, %r0, 16; selp.u32 %r1, 0xffff, 0xffff0000, %p1; @%p1 bra LOW;\n"
      "redux.sync.add.u32 %r2, %r0, %r1; bra END;\n"
      "LOW: redux.sync.add.u32 %r2, %r0, %r1;\nEND: bar.warp.sync 0xffffffff; cvt.u64.u32 %d9, %r2;");
  for (u32 lane = 0; lane < 32; ++lane) CHECK(got[lane] == (lane < 16 ? 120 : 376));
}

TEST_CASE("collectives: lanes may meet from different branches") {
  const auto got = each_thread(
      "setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW;\n"
      "shfl.sync.bfly.b32 %r2, 1000, 16, 31, 0xffffffff; bra END;\n"
      "LOW: shfl.sync.bfly.b32 %r2, 2000, 16, 31, 0xffffffff;\nEND: cvt.u64.u32 %d9, %r2;");
  for (u32 lane = 0; lane < 32; ++lane) CHECK(got[lane] == (lane < 16 ? 1000 : 2000));
}

TEST_CASE("collectives: do not wait for exited lanes") {
  const auto got = each_thread(
      "mov.u64 %d9, 0; setp.ge.u32 %p1, %r0, 20; @%p1 bra END;\n"
      "vote.sync.ballot.b32 %r1, %p1, 0xffffffff; not.b32 %r1, %r1; cvt.u64.u32 %d9, %r1;\n"
      "st.global.u64 [%d2], %d9; ret;\nEND: st.global.u64 [%d2], %d9; exit;");
  for (u32 lane = 0; lane < 20; ++lane) CHECK(got[lane] == 0xffffffff);
  // A block of 40 threads: the last warp has eight.
  const auto part =
      each_thread("setp.ge.u32 %p1, %r0, 0; vote.sync.ballot.b32 %r1, %p1, 0xffffffff; cvt.u64.u32 %d9, %r1;", 40);
  CHECK(part[39] == 0xff);
  CHECK(part[0] == 0xffffffff);
}

TEST_CASE("collectives: wrong masks and missing lanes are reported") {
  auto fault = [](const std::string& body) { return fault_of([&] { each_thread(body + "\nmov.u64 %d9, 0;"); }); };
  CHECK(mentions(fault("bar.warp.sync 0xfffffffe;"),
                 "wrong mask: a lane is not in its own mask 0xfffffffe: bar.warp.sync"));
  CHECK(mentions(fault("setp.lt.u32 %p1, %r0, 16; selp.u32 %r1, 0xffffffff, 0xffff0000, %p1; shfl.sync.idx.b32 %r2, "
                       "%r0, 0, 31, %r1;"),
                 "wrong mask: lanes of one collective name"));
  CHECK(mentions(fault("setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW; vote.sync.ballot.b32 %r1, %p1, 0xffffffff; bra END;\n"
                       "LOW: shfl.sync.bfly.b32 %r2, %r0, 16, 31, 0xffffffff;\nEND:"),
                 "mismatch: lanes of mask 0xffffffff wait in"));
  const std::string deadlock = fault(
      "setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW; bar.sync 0; bra END;\n"
      "LOW: shfl.sync.bfly.b32 %r2, %r0, 16, 31, 0xffffffff;\nEND:");
  CHECK(mentions(deadlock,
                 "deadlock: of 32 threads 16 wait at a barrier and 16 in a warp for lanes that do not come (mask "
                 "0xffffffff): shfl.sync.bfly.b32"));
}
