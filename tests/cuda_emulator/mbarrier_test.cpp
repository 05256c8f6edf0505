// Tests the order between threads of a block: mbarriers, and barriers of some threads.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// Returns PTX that declares an mbarrier b for `count` arrivals and memory s with a word per thread. %r1: s, %r2: b,
/// %r3: the word of the thread, %r4: the word of the same lane in the other warp of a pair (0 and 1, 2 and 3).
std::string prologue(u32 count) {
  return ".shared .align 8 .b8 b[8];\n.shared .align 16 .b8 s[1024];\nmov.u32 %r1, s; mov.u32 %r2, b;\n"
         "shl.b32 %r3, %r0, 2; xor.b32 %r4, %r3, 128; add.u32 %r3, %r1, %r3; add.u32 %r4, %r1, %r4;\n"
         "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r2], " +
         std::to_string(count) + ";\nbar.sync 0;\n";
}

/// Returns the races, and the fault as a separate message, of a run with the given number of threads.
std::vector<std::string> reports(const std::string& body, u32 threads = 64) {
  DeviceArray<u32> out(256, 0);
  const std::string fault = fault_of([&] { run_body(body, out.data, out.data, {{}, {threads}}); });
  std::vector<std::string> all = std::exchange(races(), {});
  if (!fault.empty()) all.push_back(fault);
  return all;
}
bool clean(const std::string& body, u32 threads = 64) { return reports(body, threads).empty(); }

const std::string store = "st.shared.u32 [%r3], %r0;\n", load = "ld.shared.u32 %r5, [%r4];\n";
const std::string arrival = "mbarrier.arrive.shared.b64 _, [%r2];\n";
std::string awaited(int parity) {
  static int label = 0;
  const std::string name = "W" + std::to_string(++label);
  return name + ": mbarrier.try_wait.parity.shared.b64 %p2, [%r2], " + std::to_string(parity) + "; @!%p2 bra " + name +
         ";\n";
}

}  // namespace

TEST_CASE("mbarrier: orders accesses before arrival with accesses after wait") {
  CHECK(clean(prologue(64) + store + arrival + awaited(0) + load));
  CHECK(!clean(prologue(64) + store + arrival + load));
  CHECK(!clean(prologue(64) + arrival + store + awaited(0) + load));
  CHECK(!clean(prologue(64) + arrival + awaited(0) + store + load));
  CHECK(!clean(prologue(64) + store + "mbarrier.arrive.relaxed.cta.shared.b64 _, [%r2];\n" + awaited(0) + load));
  CHECK(clean(prologue(64) + store + "mbarrier.arrive.release.cta.shared.b64 _, [%r2];\n" + awaited(0) + load));
  // The next phase: threads that have read then write.
  const std::string second = arrival + awaited(1) + store;
  CHECK(clean(prologue(64) + store + arrival + awaited(0) + load + second));
  CHECK(!clean(prologue(64) + store + arrival + awaited(0) + load + store));
}

TEST_CASE("mbarrier: orders only arriving threads with waiting threads") {
  const std::string warp = "setp.lt.u32 %p3, %r0, 32;\n";  // %p3: the first warp
  // Warp 0 arrives and warp 1 waits.
  CHECK(clean(prologue(32) + warp + "@!%p3 bra B;\n" + store + arrival + "bra END;\nB: " + awaited(0) + load + "END:"));
  // Warp 1 writes, and no thread waits for it.
  CHECK(
      !clean(prologue(32) + warp + "@!%p3 bra B;\n" + arrival + awaited(0) + load + "bra END;\nB: " + store + "END:"));
  // One thread of each warp arrives. If a barrier of the warp comes before, the arrival orders accesses of the whole
  // warp; otherwise, it orders only accesses of this thread.
  const std::string elected = "and.b32 %r6, %r0, 31; setp.eq.u32 %p4, %r6, 0; @%p4 " + arrival;
  const std::string together = "bar.warp.sync 0xffffffff;\n";
  CHECK(clean(prologue(2) + store + together + elected + awaited(0) + load));
  CHECK(!clean(prologue(2) + store + elected + awaited(0) + load));
  // One thread of each warp waits. Only a barrier of the warp passes the order on to the others.
  const std::string one = "and.b32 %r6, %r0, 31; setp.ne.u32 %p4, %r6, 0; @%p4 bra JOIN;\n" + awaited(0) + "JOIN: ";
  CHECK(clean(prologue(64) + store + arrival + one + together + load));
  CHECK(!clean(prologue(64) + store + arrival + one + load));
}

TEST_CASE("mbarrier: order is transitive, also through barriers") {
  // Warp 0 writes, warp 1 waits for warp 0, and warp 2 waits for warp 1.
  const std::string start = ".shared .align 8 .b8 c[8];\n" + prologue(32) +
                            "mov.u32 %r7, c; @%p1 mbarrier.init.shared.b64 [%r7], 32; bar.sync 0;\n"
                            "shr.u32 %r6, %r0, 5; setp.eq.u32 %p3, %r6, 1; setp.eq.u32 %p4, %r6, 2;\n"
                            "and.b32 %r8, %r0, 31; shl.b32 %r8, %r8, 2; add.u32 %r8, %r8, %r1;\n"  // warp 0's word
                            "@%p3 bra SECOND; @%p4 bra THIRD;\n";
  const std::string c_wait = "V: mbarrier.try_wait.parity.shared.b64 %p2, [%r7], 0; @!%p2 bra V;\n";
  const std::string middle = "bra END;\nSECOND: " + awaited(0) + "mbarrier.arrive.shared.b64 _, [%r7];\nbra END;\n";
  CHECK(clean(start + store + arrival + middle + "THIRD: " + c_wait + "ld.shared.u32 %r5, [%r8];\nEND:", 96));
  const std::string ignorant = "bra END;\nSECOND: mbarrier.arrive.shared.b64 _, [%r7];\nbra END;\n";
  CHECK(!clean(start + store + arrival + ignorant + "THIRD: " + c_wait + "ld.shared.u32 %r5, [%r8];\nEND:", 96));
  // A barrier of all threads makes all writes known to all.
  CHECK(clean(prologue(64) + store + arrival + "bar.sync 0;\n" + load));
}

TEST_CASE("mbarrier: other threads must be ordered after its initialisation") {
  const std::string init =
      ".shared .align 8 .b8 b[8];\nmov.u32 %r2, b; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r2], 64;\n";
  CHECK(clean(init + "bar.sync 0;\n" + arrival));
  CHECK(!clean(init + arrival));
}

TEST_CASE("cp.async.mbarrier.arrive: arrives after the copies of its thread") {
  // Threads copy words of their own, arrive, and read each other's.
  const auto text = [](u32 count, const std::string& middle) {
    return prologue(count) +
           "mul.wide.u32 %d3, %r0, 4; add.s64 %d4, %d1, %d3; add.s64 %d5, %d0, %d3;\n"
           "cp.async.ca.shared.global [%r3], [%d4], 4;\n" +
           middle + "ld.shared.u32 %r5, [%r4]; st.global.u32 [%d5], %r5;";
  };
  std::vector<u32> numbers;
  for (u32 i = 0; i < 64; ++i) numbers.push_back(1000 + i);
  const DeviceArray<u32> in(numbers);
  DeviceArray<u32> out(64, 0);
  const auto right = [&](const std::string& body) {
    run_body(body, out.data, in.data, {{}, {64}});
    const bool raced = !std::exchange(races(), {}).empty();
    bool same = true;
    for (u32 i = 0; i < 64; ++i) same = same && out[i] == 1000 + (i ^ 32);
    return same && !raced;
  };
  const std::string noinc = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];\n",
                    counted = "cp.async.mbarrier.arrive.shared::cta.b64 [%r2];\n";
  CHECK(right(text(64, noinc + awaited(0))));
  CHECK(!right(text(64, noinc + "bar.sync 0;\n")));  // poison
  CHECK(out[0] == 0xffffffff);
  CHECK(!right(text(64, noinc)));
  // Without .noinc the mbarrier waits for one more arrival of the thread.
  CHECK(right(text(64, counted + arrival + awaited(0))));
  CHECK(!right(text(32, noinc + awaited(0))));  // waits only for the copies of the first warp
  races().clear();
  // A write of the thread after the arrival is not ordered by it.
  CHECK(!clean(prologue(64) + noinc + store + awaited(0) + load));
  CHECK(clean(prologue(64) + store + noinc + awaited(0) + load));
}

TEST_CASE("bulk copy: is ordered before waits on its mbarrier") {
  const std::string copy =
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], 256, [%r2];\n";
  const std::string expect = "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 256;\n";
  CHECK(clean(prologue(1) + copy + expect + awaited(0) + load));
  CHECK(!clean(prologue(1) + copy + expect + load + awaited(0)));
  CHECK(clean(prologue(1) + copy + expect + awaited(0) + load + "bar.sync 0;\n" + copy + expect + awaited(1)));
  // Overwrites memory that other threads may still read.
  CHECK(!clean(prologue(1) + copy + expect + awaited(0) + load + copy + expect + awaited(1)));
}

TEST_CASE("mbarrier: a missing arrival is reported as a deadlock") {
  const auto hanging = reports(prologue(65) + arrival + awaited(0));
  REQUIRE(hanging.size() == 1);
  CHECK(mentions(hanging[0], "deadlock: a phase of an mbarrier has too few arrivals to end: mbarrier.try_wait"));
}

TEST_CASE("bar.sync with a count: orders only the counted threads") {
  const std::string both = "bar.sync 1, 64;\n";
  CHECK(clean(prologue(1) + store + both + load));
  CHECK(clean(prologue(1) + "setp.ge.u32 %p3, %r0, 64; @%p3 bra END;\n" + store + both + load + "END:", 96));
  // Warps 0 and 1 meet, and so do warps 2 and 3; each reads a word that a warp of the other pair has written.
  const std::string pairs = "shr.u32 %r6, %r0, 6; add.u32 %r6, %r6, 1; bar.sync %r6, 64;\n";
  const std::string other = "xor.b32 %r7, %r3, 256; ld.shared.u32 %r5, [%r7];\n";
  const std::string aligned = ".shared .align 1024 .b8 first[1024];\n";
  CHECK(clean(aligned + prologue(1) + store + pairs + load, 128));
  CHECK(!clean(aligned + prologue(1) + store + pairs + other, 128));
  CHECK(clean(aligned + prologue(1) + store + pairs + "bar.sync 0;\n" + other, 128));
}

TEST_CASE("bar.arrive: does not wait; orders earlier accesses before waiters") {
  const std::string warp = "setp.lt.u32 %p3, %r0, 32; @!%p3 bra B;\n";
  CHECK(clean(prologue(1) + warp + store + "bar.arrive 1, 64; bra END;\nB: bar.sync 1, 64;\n" + load + "END:"));
  CHECK(!clean(prologue(1) + warp + "bar.arrive 1, 64;\n" + store + "bra END;\nB: bar.sync 1, 64;\n" + load + "END:"));
  // Threads that only arrive learn nothing about the other threads.
  CHECK(!clean(prologue(1) + warp + "bar.arrive 1, 64;\n" + load + "bra END;\nB: " + store + "bar.sync 1, 64;\nEND:"));
  // Several rounds. The second wait needs a second arrival.
  CHECK(clean(prologue(1) + warp + store + "bar.arrive 1, 64; bar.sync 2, 64;\n" + store +
              "bar.arrive 1, 64; bra END;\nB: bar.sync 1, 64;\n" + load + "bar.arrive 2, 64; bar.sync 1, 64;\n" + load +
              "END:"));
  const auto hanging =
      reports(prologue(1) + warp + "bar.arrive 1, 64; bra END;\nB: bar.sync 1, 64; bar.sync 1, 64;\nEND:");
  REQUIRE(hanging.size() == 1);
  CHECK(mentions(hanging[0], "deadlock: of 32 threads 32 wait at a barrier"));
}
