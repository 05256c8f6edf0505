// Tests asynchronous copies and the instructions that wait for them.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST_CASE("cp.async: copies and pads with zeros") {
  const std::vector<u32> in{1, 2, 3, 4};
  const DeviceArray<u32> source(in);
  DeviceArray<u32> out(4, 0);
  run_body(
      ".shared .align 16 .b8 s[32];\nmov.u32 %r1, s; cp.async.cg.shared.global [%r1+16], [%d1], 16, 8;\n"
      "cp.async.commit_group; cp.async.wait_group 0;\n"
      "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s+16]; st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5};",
      out.data, source.data);
  CHECK(out.values() == std::vector<u32>{1, 2, 0, 0});
}

TEST_CASE("cp.async: data arrive at the wait for their group") {
  const std::vector<u32> in{1, 2, 3, 4};
  const DeviceArray<u32> source(in);
  // Copies each of the first three words in its own group, and the fourth without a group. Returns the words after
  // `wait`.
  const auto after = [&](const std::string& wait) {
    DeviceArray<u32> out(4, 0);
    run_body(
        ".shared .align 16 .b8 s[16];\nmov.u32 %r1, s;\n"
        "cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.commit_group;\n"
        "cp.async.ca.shared.global [%r1+4], [%d1+4], 4; cp.async.commit_group;\n"
        "cp.async.ca.shared.global [%r1+8], [%d1+8], 4; cp.async.commit_group;\n"
        "cp.async.ca.shared.global [%r1+12], [%d1+12], 4;\n" +
            wait + "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s]; st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5};",
        out.data, source.data);
    return out.values();
  };
  constexpr u32 poison = 0xffffffff;
  CHECK(after("") == std::vector<u32>{poison, poison, poison, poison});
  CHECK(after("cp.async.wait_group 3;\n") == std::vector<u32>{poison, poison, poison, poison});
  CHECK(after("cp.async.wait_group 2;\n") == std::vector<u32>{1, poison, poison, poison});
  CHECK(after("cp.async.wait_group 1;\n") == std::vector<u32>{1, 2, poison, poison});
  CHECK(after("cp.async.wait_group 0;\n") == std::vector<u32>{1, 2, 3, poison});
  CHECK(after("cp.async.wait_all;\n") == in);
  CHECK(after("cp.async.commit_group; cp.async.wait_group 0;\n") == in);
  CHECK(after("cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 2;\n") ==
        std::vector<u32>{1, 2, 3, poison});  // an empty group counts as a group
}

TEST_CASE("cp.async: a thread waits for its own copies only") {
  const std::vector<u32> in{1, 2};
  const DeviceArray<u32> source(in);
  DeviceArray<u32> out(2, 0);
  run_body(
      ".shared .align 4 .b8 s[8];\nmov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2;\n"
      "cvt.u64.u32 %d3, %r2; add.s64 %d4, %d1, %d3; add.s64 %d5, %d0, %d3;\n"
      "cp.async.ca.shared.global [%r1], [%d4], 4; cp.async.commit_group;\n"
      "setp.eq.u32 %p1, %r0, 0; @%p1 cp.async.wait_group 0;\n"
      "ld.shared.u32 %r3, [%r1]; st.global.u32 [%d5], %r3;",
      out.data, source.data, {{}, {2}});
  CHECK(out.values() == std::vector<u32>{1, 0xffffffff});
}

TEST_CASE("cp.async: reads race unless barriers order the reads and copies") {
  const std::vector<u32> in(64, 7);
  const DeviceArray<u32> source(in);
  DeviceArray<u32> out(64, 0);
  // Each thread reads the word that the next one copies.
  const auto races_with = [&](const std::string& before, const std::string& after) {
    run_body(
        ".shared .align 4 .b8 s[256];\nmov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;\n"
        "add.u32 %r4, %r2, 4; and.b32 %r4, %r4, 255; add.u32 %r4, %r1, %r4;\n"
        "cvt.u64.u32 %d3, %r2; add.s64 %d4, %d1, %d3;\n"
        "cp.async.ca.shared.global [%r3], [%d4], 4; cp.async.commit_group;\n" +
            before + "ld.shared.u32 %r5, [%r4];\n" + after,
        out.data, source.data, {{}, {64}});
    return std::exchange(races(), {});
  };
  const std::string wait = "cp.async.wait_group 0;\n", barrier = "bar.sync 0;\n";
  CHECK(races_with(wait + barrier, "").empty());
  CHECK(races_with(barrier, barrier + wait).empty());  // not a race, but the value is poison
  CHECK(!races_with(barrier + wait, "").empty());
  CHECK(!races_with(barrier, wait).empty());
  CHECK(!races_with("", wait).empty());
}

TEST_CASE("bulk copy: completes an mbarrier that expects its bytes") {
  const std::vector<u32> in{1, 2, 3, 4};
  const DeviceArray<u32> source(in);
  DeviceArray<u32> out(64, 0);
  run_body(
      ".shared .align 16 .b8 s[16];\n.shared .align 8 .b8 b[8];\n"
      "mov.u32 %r1, s; mov.u32 %r2, b; setp.ne.u32 %p1, %r0, 0; @%p1 bra WAIT;\n"
      "mbarrier.init.shared::cta.b64 [%r2], 1;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], 16, [%r2];\n"
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 16;\n"
      "WAIT: bar.sync 0;\n"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra AGAIN;\n"
      "ld.shared.u32 %r3, [s+8]; mul.wide.u32 %d3, %r0, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r3;",
      out.data, source.data, {{}, {64}});
  for (u32 i = 0; i < 64; ++i) CHECK(out[i] == 3);
}

TEST_CASE("bulk copy: data arrive at a wait; unawaited copies fault") {
  const std::vector<u32> in{1, 2, 3, 4};
  const DeviceArray<u32> source(in);
  DeviceArray<u32> out(1, 0);
  const auto run = [&](const std::string& before, const std::string& after) {
    run_body(
        ".shared .align 16 .b8 s[16];\n.shared .align 8 .b8 b[8];\n"
        "mov.u32 %r1, s; mov.u32 %r2, b; mbarrier.init.shared::cta.b64 [%r2], 1;\n"
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 16;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], 16, [%r2];\n" +
            before + "ld.shared.u32 %r3, [s+8]; st.global.u32 [%d0], %r3;\n" + after,
        out.data, source.data);
    return out[0];
  };
  const std::string wait = "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra AGAIN;\n";
  CHECK(run(wait, "") == 3);
  CHECK(run("", wait) == 0xffffffff);
  CHECK(
      mentions(fault_of([&] { run("", ""); }),
               "a bulk copy that no thread has waited for, at the end of its block: 16 bytes to 0x0 with the mbarrier "
               "at 0x10: cp.async.bulk"));
}

TEST_CASE("mbarrier: threads wait for arrivals of other warps by phase") {
  const std::vector<u64> got = each_thread(
      ".shared .align 8 .b8 b[8];\n.shared .u32 s[2];\n"
      "mov.u32 %r2, b; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r2], 64; bar.sync 0;\n"
      "mbarrier.arrive.shared.b64 %d3, [%r2];\n"
      "ONE: mbarrier.test_wait.shared.b64 %p2, [%r2], %d3; @!%p2 bra ONE;\n"
      "mbarrier.arrive.shared.b64 %d4, [%r2];\n"
      "TWO: mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 1; @!%p2 bra TWO;\nmov.u64 %d9, 1;",
      64);
  for (const u64 value : got) CHECK(value == 1);
}

TEST_CASE("invalid copy: each kind has its own message") {
  DeviceArray<u32> out(4, 0);
  auto fault = [&](const std::string& body) { return fault_of([&] { run_body(body, out.data); }); };
  const std::string shared = ".shared .align 8 .b8 s[8];\nmov.u32 %r1, s; ";
  CHECK(mentions(fault(shared + "cp.async.ca.shared.global [%r1], [%d0+16], 4;"), "out of bounds global load"));
  CHECK(mentions(
      fault(shared + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 8, [%r1];"),
      "misaligned access of 16 bytes"));
  CHECK(mentions(
      fault(shared + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 16, [%r1];"),
      "out of bounds shared bulk copy of 16 bytes to 0x0"));
  CHECK(mentions(fault(".shared .align 16 .b8 t[32];\nmov.u32 %r1, t;"
                       "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 32, [%r1];"),
                 "out of bounds global bulk copy of 32 bytes"));
  CHECK(mentions(fault(shared + "mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.shared.b64 %d3, [%r1], 2;"),
                 "more arrivals at an mbarrier than it expects"));
}
