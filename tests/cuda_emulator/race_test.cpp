// Tests data races: accesses that race, and accesses that do not. The order in which the emulator runs threads must not
// hide a race.
#include "cuda_emulator/race.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;

namespace {

/// Runs a body. Removes its races from the list and returns them.
std::vector<std::string> races_of(const std::string& body, Extent grid, Extent block, std::size_t words = 1024) {
  DeviceArray<u32> out(words, 0);
  run_body(body, out.data, nullptr, {grid, block});
  return std::exchange(races(), {});
}

bool race_free(const std::string& body, Extent grid, Extent block) { return races_of(body, grid, block).empty(); }

/// Returns PTX that sets %p1 to `thread == n`.
std::string only(u32 thread) { return "setp.eq.u32 %p1, %r0, " + std::to_string(thread) + ";\n"; }

/// PTX that sets %r3 to the address of the thread's word in shared memory, and %r4 to the address of the next thread's
/// word.
const std::string own_word =
    ".shared .align 16 .b8 s[4096];\nmov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;\n"
    "add.u32 %r4, %r0, 1; rem.u32 %r4, %r4, %ntid.x; shl.b32 %r4, %r4, 2; add.u32 %r4, %r1, %r4;\n";

}  // namespace

TEST_CASE("shared memory: a missing barrier is a race") {
  for (const u32 threads : {32u, 64u}) {
    CAPTURE(threads);
    const std::string write = own_word + "st.shared.u32 [%r3], %r0;\n", read = "ld.shared.u32 %r5, [%r4];";
    CHECK(!race_free(write + read, {}, {threads}));
    CHECK(race_free(write + "bar.sync 0;\n" + read, {}, {threads}));
    CHECK(race_free(write + "barrier.cta.red.or.pred %p2, 0, %p1;\n" + read, {}, {threads}));
  }
}

TEST_CASE("shared memory: an unordered write after a read races") {
  const std::string fill = own_word + "st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r4];\n";
  CHECK(!race_free(fill + "st.shared.u32 [%r3], %r5;", {}, {64}));
  CHECK(race_free(fill + "bar.sync 0; st.shared.u32 [%r3], %r5;", {}, {64}));
}

TEST_CASE("warp barrier: orders only the lanes of one warp") {
  const std::string body = own_word + "st.shared.u32 [%r3], %r0; bar.warp.sync 0xffffffff; ld.shared.u32 %r5, [%r4];";
  CHECK(race_free(body, {}, {32}));
  CHECK(!race_free(body, {}, {64}));  // lane 31 reads what lane 32 wrote
  // Accesses after the barrier are not ordered by it.
  CHECK(
      !race_free(own_word + "bar.warp.sync 0xffffffff; st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r4];", {}, {32}));
  // A shuffle synchronises lanes, but orders no memory.
  CHECK(!race_free(
      own_word + "st.shared.u32 [%r3], %r0; shfl.sync.idx.b32 %r6, %r0, 0, 31, 0xffffffff; ld.shared.u32 %r5, [%r4];",
      {}, {32}));
}

TEST_CASE("race: two writes of the same value race") {
  CHECK(!race_free("st.global.u32 [%d0], 7;", {}, {2}));
  CHECK(!race_free(own_word + "st.shared.u32 [%r1], 7;", {}, {2}));
  CHECK(race_free("st.global.u32 [%d0], 7;", {}, {1}));
}

TEST_CASE("race: blocks are concurrent in any order of execution") {
  const std::string number = "mov.u32 %r1, %ctaid.x; ";
  CHECK(!race_free("st.global.u32 [%d0], 7;", {2}, {1}));
  // The block that runs later reads the word, or writes a word that the earlier one has read.
  CHECK(!race_free(number + "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d0], 7; @!%p1 ld.global.u32 %r2, [%d0];",
                   {2}, {1}));
  CHECK(!race_free(number + "setp.eq.u32 %p1, %r1, 0; @!%p1 st.global.u32 [%d0], 7; @%p1 ld.global.u32 %r2, [%d0];",
                   {2}, {1}));
  CHECK(race_free("ld.global.u32 %r2, [%d0];", {4}, {32}));
  CHECK(race_free(
      number + "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], 7; ld.global.u32 %r2, [%d3];",
      {4}, {1}));
  // A barrier of one block does not order another.
  CHECK(!race_free("bar.sync 0; st.global.u32 [%d0], 7; bar.sync 0;", {2}, {1}));
}

TEST_CASE("race: an earlier reader is remembered after later readers") {
  const std::string number = "mov.u32 %r1, %ctaid.x;\n";
  // Block 0 reads; then blocks 1 to 3 read, and the last of them writes.
  CHECK(!race_free(
      number + "ld.global.u32 %r2, [%d0]; bar.sync 0; setp.eq.u32 %p1, %r1, 3; setp.eq.and.u32 %p1, %r0, 0, %p1;\n"
               "@%p1 st.global.u32 [%d0], 7;",
      {4}, {64}));
  // Thread 0 reads, thread 1 reads and writes.
  CHECK(!race_free("ld.global.u32 %r2, [%d0];\n" + only(1) + "@%p1 st.global.u32 [%d0], 7;", {}, {2}));
  // All threads of two warps read the word. After a barrier of its warp, thread 0 writes the word.
  CHECK(!race_free("ld.global.u32 %r2, [%d0]; bar.warp.sync 0xffffffff;\n" + only(0) + "@%p1 st.global.u32 [%d0], 7;",
                   {}, {64}));
  CHECK(race_free("ld.global.u32 %r2, [%d0]; bar.warp.sync 0xffffffff;\n" + only(0) + "@%p1 st.global.u32 [%d0], 7;",
                  {}, {32}));
}

TEST_CASE("race: a reader is remembered while warps take turns") {
  // Warp 0 reads, warp 1 reads, warp 0 reads again and then, after a barrier of its own, writes.
  const std::string body =
      ".shared .u32 flag;\nsetp.eq.u32 %p1, %r0, 0; @%p1 st.volatile.shared.u32 [flag], 0; bar.sync 0;\n"
      "ld.global.u32 %r2, [%d0]; setp.ge.u32 %p2, %r0, 32; @%p2 bra SET;\n"
      "SPIN: ld.volatile.shared.u32 %r1, [flag]; setp.eq.u32 %p3, %r1, 0; @%p3 bra SPIN;\n"
      "ld.global.u32 %r3, [%d0]; bar.warp.sync 0xffffffff; @%p1 st.global.u32 [%d0], 7; bra END;\n"
      "SET: st.volatile.shared.u32 [flag], 1;\nEND:";
  CHECK(races_of(body, {}, {64}).size() == 1);
}

TEST_CASE("race detector: reports a weak write before a strong one") {
  const std::string strong = "red.global.add.u32 [%d0], 1;\n";
  CHECK(!race_free(only(0) + "@%p1 st.global.u32 [%d0], 7;\n" + strong, {}, {2}));
  CHECK(race_free(only(0) + "@%p1 st.global.u32 [%d0], 7; bar.sync 0;\n" + strong, {}, {2}));
  CHECK(race_free(strong + strong, {}, {64}));
}

TEST_CASE("race detector: reports a weak read before strong ones") {
  CHECK(!race_free(only(0) + "@%p1 ld.global.u32 %r2, [%d0];\n" + only(1) +
                       "@%p1 ld.relaxed.gpu.global.u32 %r2, [%d0];\n" + only(2) +
                       "@%p1 ld.relaxed.gpu.global.u32 %r2, [%d0];\n" + only(3) + "@%p1 red.global.add.u32 [%d0], 1;",
                   {}, {4}));
}

TEST_CASE("strong accesses: race only with weak accesses") {
  for (const char* strong : {"red.global.add.u32 [%d0], 1;", "atom.global.exch.b32 %r1, [%d0], 1;",
                             "st.relaxed.gpu.global.u32 [%d0], 1;", "st.volatile.global.u32 [%d0], 1;"}) {
    CAPTURE(strong);
    CHECK(race_free(strong, {4}, {64}));
    CHECK(race_free(std::string(strong) + "ld.volatile.global.u32 %r2, [%d0];", {4}, {64}));
    CHECK(!race_free(std::string(strong) + only(5) + "@%p1 ld.global.u32 %r2, [%d0];", {}, {64}));
    CHECK(!race_free(only(5) + "@%p1 st.global.u32 [%d0], 3;\n" + strong, {}, {64}));
  }
  // Once a barrier has passed, the sum may be read.
  CHECK(race_free("red.global.add.u32 [%d0], 1; bar.sync 0; ld.global.u32 %r2, [%d0];", {}, {64}));
  // Two threads add, then the second thread reads. The addition of the first thread is not ordered with this read.
  CHECK(!race_free("red.global.add.u32 [%d0], 1;\n" + only(1) + "@%p1 ld.global.u32 %r2, [%d0];", {}, {2}));
}

TEST_CASE("launches: are ordered in a stream") {
  DeviceArray<u32> out(1, 0);
  const std::string write = only(0) + "@%p1 st.global.u32 [%d0], 7;";
  run_body(write, out.data);
  run_body(write, out.data, nullptr, {{}, {2}});
  run_body("ld.global.u32 %r1, [%d0];", out.data, nullptr, {{3}, {2}});
  CHECK(races().empty());
}

TEST_CASE("race: is detected per byte, not per word") {
  const std::string own_byte = "cvt.u64.u32 %d3, %r0; add.s64 %d3, %d3, %d0;\n";
  CHECK(race_free(own_byte + "st.global.u8 [%d3], %r0; ld.global.u8 %r1, [%d3];", {}, {64}));
  CHECK(!race_free(own_byte + "st.global.u8 [%d3], %r0; ld.global.u8 %r1, [%d3+1];", {}, {63}));
  const std::string own_half = "mul.wide.u32 %d3, %r0, 2; add.s64 %d3, %d3, %d0;\n";
  CHECK(race_free(own_half + "st.global.u16 [%d3], %r0;", {}, {64}));
  CHECK(!race_free(own_half + "st.global.u16 [%d3], %r0;\n" + only(3) + "@%p1 ld.global.u32 %r1, [%d0+8];", {}, {64}));
  // Whole words first, then a part of one, and the other way round.
  CHECK(!race_free(only(0) + "@%p1 st.global.u32 [%d0], 1; @!%p1 st.global.u8 [%d0+3], 1;", {}, {2}));
  CHECK(!race_free(only(0) + "@%p1 st.global.u8 [%d0+3], 1; @!%p1 st.global.u64 [%d0], 1;", {}, {2}));
  CHECK(race_free(only(0) + "@%p1 st.global.u8 [%d0+3], 1; bar.sync 0; @!%p1 st.global.u64 [%d0], 1;", {}, {2}));
}

TEST_CASE("local and shared memory: different blocks do not race") {
  CHECK(race_free(".local .align 4 .b8 l[4];\nst.local.u32 [l], %r0; ld.local.u32 %r1, [l];", {2}, {64}));
  CHECK(race_free(own_word + "st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r3];", {8}, {64}));
}

TEST_CASE("race: blocks that take turns race only without order") {
  // Block 0 waits for block 1. Each block writes and reads only its own word; the two words are neighbours.
  DeviceArray<u32> out(8, 0);
  run_body(
      "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0;\n"
      "st.global.u32 [%d3+4], 5; @%p1 bra SET;\n"
      "SPIN: nanosleep.u32 1; ld.acquire.gpu.global.u32 %r2, [%d0]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra END;\n"
      "SET: st.release.gpu.global.u32 [%d0], 1;\nEND: ld.global.u32 %r4, [%d3+4]; st.global.u32 [%d3+4], 6;",
      out.data, nullptr, {{2}, {1}});
  CHECK(races().empty());
  // Without an order between the blocks: block 1 writes the word of block 0 while block 0 waits.
  run_body(
      "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra SET; ld.global.u32 %r3, [%d0+4];\n"
      "SPIN: nanosleep.u32 1; ld.acquire.gpu.global.u32 %r2, [%d0+16]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra "
      "END;\n"
      "SET: st.global.u32 [%d0+4], 1; st.release.gpu.global.u32 [%d0+16], 1;\nEND:",
      out.data, nullptr, {{2}, {1}});
  CHECK(std::exchange(races(), {}).size() == 1);
}

TEST_CASE("release and acquire: order accesses of two blocks") {
  // Block 0 writes and then sets a flag; block 1 waits for the flag and reads. Thread 40 of each block handles the
  // flag.
  auto message = [](const std::string& publish, const std::string& look, const std::string& after = "",
                    const std::string& before = "") {
    return races_of(
        "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r0, 40; @%p1 bra READ;\n"
        "bar.sync 2; mul.wide.u32 %d3, %r0, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3+16], 5;\n" +
            before + "@!%p2 bra END;\n" + publish + "bra END;\nREAD: @!%p2 bra LOOK;\nSPIN: nanosleep.u32 1;\n" + look +
            "setp.eq.u32 %p3, %r2, 0; @%p3 bra SPIN;\n" + after +
            "LOOK: bar.sync 1;\n"
            "ld.global.u32 %r3, [%d0+180];\nEND:",  // the word of thread 41
        {2}, {64});
  };
  const std::string release = "st.release.gpu.global.u32 [%d0], 1;", acquire = "ld.acquire.gpu.global.u32 %r2, [%d0];",
                    relaxed = "st.relaxed.gpu.global.u32 [%d0], 1;", look = "ld.relaxed.gpu.global.u32 %r2, [%d0];",
                    fence = "membar.gl;", barrier = "bar.sync 0;\n";
  CHECK(message(release, acquire, "", barrier).empty());
  CHECK(message(fence + relaxed, look, fence, barrier).empty());
  CHECK(message("fence.acq_rel.gpu; red.global.add.u32 [%d0], 1;", look, "fence.sc.sys;", barrier).empty());
  CHECK(message("atom.release.gpu.global.add.u32 %r4, [%d0], 1;", "atom.acquire.gpu.global.or.b32 %r2, [%d0], 0;", "",
                barrier)
            .empty());
  // If any part is missing, there is a race: the barrier before, the release, the acquire, or the scope of the fence.
  CHECK(message(release, acquire).size() == 1);
  CHECK(message(relaxed, acquire, "", barrier).size() == 1);
  CHECK(message(release, look, "", barrier).size() == 1);
  CHECK(message(fence + relaxed, look, "membar.cta;", barrier).size() == 1);
  CHECK(message("membar.cta;" + relaxed, look, fence, barrier).size() == 1);
  CHECK(message("st.release.cta.global.u32 [%d0], 1;", acquire, "", barrier).size() == 1);
}

TEST_CASE("release and acquire: order is transitive, also through atomics") {
  // Every block writes a word of its own and then increments a counter. The last block reads all words.
  const std::string
      write = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3+16], 5;\n",
      read =
          "setp.ne.u32 %p1, %r4, 3; @%p1 bra END;\n"
          "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d0+16];\nEND:";
  CHECK(race_free(write + "membar.gl; atom.global.add.u32 %r4, [%d0], 1; membar.gl;\n" + read, {4}, {1}));
  CHECK(race_free(write + "atom.acq_rel.gpu.global.add.u32 %r4, [%d0], 1;\n" + read, {4}, {1}));
  CHECK(!race_free(write + "atom.global.add.u32 %r4, [%d0], 1; membar.gl;\n" + read, {4}, {1}));
  CHECK(!race_free(write + "membar.gl; atom.global.add.u32 %r4, [%d0], 1;\n" + read, {4}, {1}));
  // A chain: block 1 reads the flag of block 0 and sets a flag that block 2 reads. The flags have different addresses.
  const std::string chain =
      "mov.u32 %r1, %ctaid.x; mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; setp.eq.u32 %p1, %r1, 0; @%p1 bra "
      "FIRST;\n"
      "SPIN: nanosleep.u32 1; ld.acquire.gpu.global.u32 %r2, [%d3]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN;\n"
      "st.release.gpu.global.u32 [%d3+4], 1; ld.global.u32 %r3, [%d0+256]; bra END;\n"
      "FIRST: st.global.u32 [%d0+256], 9; st.release.gpu.global.u32 [%d3+4], 1;\nEND:";
  CHECK(race_free(chain, {3}, {1}));
}

TEST_CASE("race: is reported once per launch, with both accesses") {
  DeviceArray<u32> out(1, 0);
  const std::string body = only(0) + "@%p1 st.global.u32 [%d0], 7;\n@!%p1 ld.global.u32 %r2, [%d0];";
  for (int i = 0; i < 2; ++i) run_body(body, out.data, nullptr, {{}, {64}});
  REQUIRE(races().size() == 2);
  CHECK(races()[0] ==
        "data race: global load of 4 bytes at " + hexadecimal(reinterpret_cast<std::uintptr_t>(out.data)) +
            ", by block (0,0,0), thread (1,0,0): ld.global.u32 at PTX line 12, not ordered with that by block "
            "(0,0,0), thread (0,0,0): st.global.u32 at PTX line 11, in kernel k");
  CHECK(races()[1] == races()[0]);
  races().clear();
}

TEST_CASE("race: option races = false disables the race detector") {
  options().races = false;
  CHECK(race_free("st.global.u32 [%d0], 7;", {2}, {64}));
}

TEST_CASE("Timeline: finds the owner of a segment") {
  Timeline timeline;
  timeline.begin_launch();
  const u32 a = timeline.begin_segment(4), b = timeline.begin_segment(4), c = timeline.begin_segment(9),
            d = timeline.begin_segment(4);
  CHECK(timeline.first() == a);
  CHECK(timeline.block_of(a) == 4);
  CHECK(timeline.block_of(b) == 4);
  CHECK(timeline.block_of(c) == 9);
  CHECK(timeline.block_of(d) == 4);
  timeline.begin_launch();
  CHECK(timeline.first() > d);
}
