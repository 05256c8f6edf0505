// Tests control flow and barriers: branches, loops, calls, divergence, waiting, and programs that never end.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

TEST_CASE("control flow: every lane follows its own branches and loops") {
  // The number of steps of the Collatz sequence to 1.
  const auto got = each_thread(
      "add.u32 %r1, %r0, 1; mov.u32 %r2, 0;\n"
      "LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE; add.u32 %r2, %r2, 1; and.b32 %r3, %r1, 1; setp.eq.u32 %p2, %r3, "
      "0;\n"
      "@%p2 bra EVEN; mad.lo.u32 %r1, %r1, 3, 1; bra LOOP;\nEVEN: shr.u32 %r1, %r1, 1; bra.uni LOOP;\n"
      "DONE: cvt.u64.u32 %d9, %r2;",
      70);
  for (u32 thread = 0; thread < 70; ++thread) {
    u64 steps = 0;
    for (u64 n = thread + 1; n != 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    CHECK(got[thread] == steps);
  }
}

TEST_CASE("guards: skip single instructions, plain and negated") {
  const auto got =
      each_thread("setp.lt.u32 %p1, %r0, 5; mov.u64 %d9, 1; @%p1 add.s64 %d9, %d9, 10; @!%p1 add.s64 %d9, %d9, 20;");
  for (u32 lane = 0; lane < 32; ++lane) CHECK(got[lane] == (lane < 5 ? 11 : 21));
}

TEST_CASE("brx.idx: jumps through its table") {
  const std::string body =
      "and.b32 %r1, %r0, 3;\nTABLE: .branchtargets A, B, C, B;\nbrx.idx %r1, TABLE;\n"
      "A: mov.u64 %d9, 10; bra END;\nB: mov.u64 %d9, 20; bra END;\nC: mov.u64 %d9, 30;\nEND:";
  const auto got = each_thread(body);
  const u64 expected[] = {10, 20, 30, 20};
  for (u32 lane = 0; lane < 32; ++lane) CHECK(got[lane] == expected[lane % 4]);
  const std::string beyond =
      fault_of([&] { each_thread("TABLE: .branchtargets A;\nbrx.idx %r0, TABLE;\nA: mov.u64 %d9, 0;"); });
  CHECK(mentions(beyond, "branch index 1 beyond a table of 1: brx.idx"));
}

TEST_CASE("call: passes parameters and results, also for some lanes") {
  const std::string before =
      ".func (.param .b64 result) twice(.param .b64 x)\n{\n.reg .b64 %d<3>;\nld.param.u64 %d1, [x]; add.s64 %d2, %d1, "
      "%d1;\n"
      "st.param.b64 [result], %d2; ret;\n}\n"
      ".func (.param .b64 result) twice_plus(.param .align 8 .b8 pair[16])\n{\n.reg .b64 %d<5>;\n"
      "ld.param.u64 %d1, [pair]; ld.param.u64 %d2, [pair+8];\n"
      "{ .param .b64 a; .param .b64 r; st.param.b64 [a], %d1; call.uni (r), twice, (a); ld.param.b64 %d3, [r]; }\n"
      "add.s64 %d4, %d3, %d2; st.param.b64 [result], %d4;\n}\n";
  const std::string body =
      "cvt.u64.u32 %d3, %r0; mov.u64 %d9, 1; setp.lt.u32 %p1, %r0, 20;\n"
      "{ .param .align 8 .b8 a[16]; .param .b64 r; st.param.b64 [a], %d3; st.param.b64 [a+8], 7;\n"
      "@%p1 call (r), twice_plus, (a); @%p1 ld.param.b64 %d9, [r]; }\n"
      "{ .param .b64 a; .param .b64 r; st.param.b64 [a], %d9; call (r), twice, (a); ld.param.b64 %d9, [r]; }\n"
      "st.global.u64 [%d2], %d9;";
  DeviceArray<u64> out(32);
  run_module(kernel_text(body, before), out.data, nullptr, {{}, {32}});
  for (u64 lane = 0; lane < 32; ++lane) CHECK(out[lane] == (lane < 20 ? 2 * (2 * lane + 7) : 2));
}

TEST_CASE("call: recursion, driver functions and function pointers fault") {
  const std::string recursive = ".func f() { call f; ret; }\n";
  CHECK(fault_of([&] { run_module(kernel_text("call f;", recursive), nullptr); }) ==
        "PTX: f calls itself: recursion is not modelled, in kernel k");
  const std::string driver = ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n";
  CHECK(mentions(fault_of([&] {
                   run_module(
                       kernel_text("{.param .b64 a; .param .b64 b; .param .b32 r; call (r), vprintf, (a, b);}", driver),
                       nullptr);
                 }),
                 "refused: calls of functions of the driver (printf, malloc) are not modelled"));
  CHECK(mentions(fault_of([&] { run_body("P: .callprototype _ (); call %d1, (), P;", nullptr); }),
                 "refused: calls through pointers are not modelled"));
}

TEST_CASE("assert: a failed assertion faults with its text") {
  const std::string before =
      ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);\n"
      ".global .align 1 .b8 message[6] = {120, 32, 62, 32, 48, 0};\n.global .align 1 .b8 file[5] = {97, 46, 99, 117, "
      "0};\n";
  const std::string fault = fault_of([&] {
    run_module(kernel_text("{.param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;\n"
                           "mov.u64 %d3, message; cvta.global.u64 %d3, %d3; mov.u64 %d4, file; st.param.b64 [m], %d3;\n"
                           "st.param.b64 [f], %d4; st.param.b32 [l], 12; call.uni __assertfail, (m, f, l, n, s);}",
                           before),
               nullptr);
  });
  CHECK(mentions(fault, "assertion failed: x > 0 (a.cu:12): call.uni at PTX line"));
}

TEST_CASE("trap and brkpt: fault") {
  CHECK(mentions(fault_of([] { run_body("trap;", nullptr); }), "trap: trap at PTX line 10 in kernel k"));
  CHECK(mentions(fault_of([] { run_body("brkpt;", nullptr); }), "trap: brkpt"));
}

TEST_CASE("special registers: identify the thread") {
  const std::string body =
      "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x; mad.lo.u32 %r4, %r2, %r3, %r1;\n"
      "mov.u32 %r5, %tid.x; mov.u32 %r6, %tid.y; mov.u32 %r7, %tid.z; mov.u32 %r8, %ntid.x; mov.u32 %r9, %ntid.y;\n"
      "mad.lo.u32 %r10, %r7, %r9, %r6; mad.lo.u32 %r10, %r10, %r8, %r5; mad.lo.u32 %r11, %r4, 24, %r10;\n"
      "mov.u32 %r12, %laneid; mov.u32 %r13, %warpid; mov.u32 %r14, %ntid.z; mov.u32 %r15, %nctaid.y;\n"
      "mul.wide.u32 %d3, %r11, 16; add.s64 %d3, %d3, %d0; st.global.v4.u32 [%d3], {%r12, %r13, %r14, %r15};";
  DeviceArray<u32> out(6 * 24 * 4);
  run_body(body, out.data, nullptr, {{3, 2}, {4, 3, 2}});
  for (u32 i = 0; i < 6 * 24; ++i) {
    CHECK(out[4 * i] == i % 24);
    CHECK(out[4 * i + 1] == 0);
    CHECK(out[4 * i + 2] == 2);
    CHECK(out[4 * i + 3] == 2);
  }
  const auto masks = each_thread(
      "mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %lanemask_ge; add.u32 %r3, %r1, %r2;\n"
      "mov.u32 %r4, %lanemask_le; mov.u32 %r5, %lanemask_eq; sub.u32 %r4, %r4, %r5; xor.b32 %r1, %r1, %r4;\n"
      "mov.u32 %r6, %lanemask_gt; or.b32 %r6, %r6, %r5; xor.b32 %r6, %r6, %r2; or.b32 %r1, %r1, %r6;\n"
      "mov.b64 %d9, {%r3, %r1};");
  for (const u64 value : masks) CHECK(value == 0xffffffff);
  const auto lower = each_thread("mov.u32 %r1, %lanemask_lt; cvt.u64.u32 %d9, %r1;");
  CHECK(lower[5] == 31);
  CHECK(each_thread("mov.u32 %r1, WARP_SZ; cvt.u64.u32 %d9, %r1;")[0] == 32);
}

TEST_CASE("bar.sync: all warps see all earlier writes") {
  const auto got = each_thread(
      ".shared .align 4 .b8 s[400];\nmov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], "
      "%r0;\n"
      "bar.sync 0; sub.u32 %r4, 99, %r0; shl.b32 %r4, %r4, 2; add.u32 %r4, %r1, %r4; ld.shared.u32 %r5, [%r4]; "
      "cvt.u64.u32 %d9, %r5;",
      100);
  for (u64 thread = 0; thread < 100; ++thread) CHECK(got[thread] == 99 - thread);
}

TEST_CASE("barrier.red: reduces a predicate over the block") {
  auto reduce = [](const std::string& kind, const std::string& limit) {
    const bool count = kind == "popc.u32";
    return each_thread("setp.lt.u32 %p1, %r0, " + limit + "; barrier.cta.red." + kind + (count ? " %r1" : " %p2") +
                           ", 0, %p1;\n" + (count ? "" : "selp.u32 %r1, 1, 0, %p2;") + "cvt.u64.u32 %d9, %r1;",
                       80)[79];
  };
  CHECK(reduce("popc.u32", "70") == 70);
  CHECK(reduce("and.pred", "70") == 0);
  CHECK(reduce("and.pred", "80") == 1);
  CHECK(reduce("or.pred", "1") == 1);
  CHECK(reduce("or.pred", "0") == 0);
  const auto inverted =
      each_thread("setp.lt.u32 %p1, %r0, 70; bar.red.popc.u32 %r1, 1, !%p1; cvt.u64.u32 %d9, %r1;", 80);
  CHECK(inverted[0] == 10);
}

TEST_CASE("named barriers: wait for the given number of threads") {
  // Warps 0 and 1 use barrier 1; warp 2 does not wait.
  const auto got = each_thread(
      ".shared .align 4 .b8 s[256];\nmov.u64 %d9, 5; setp.ge.u32 %p1, %r0, 64; @%p1 bra END;\n"
      "mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; st.shared.u32 [%r3], %r0; bar.sync 1, 64;\n"
      "xor.b32 %r4, %r2, 128; add.u32 %r4, %r1, %r4; ld.shared.u32 %r5, [%r4]; cvt.u64.u32 %d9, %r5;\nEND:",
      96);
  for (u64 thread = 0; thread < 96; ++thread) CHECK(got[thread] == (thread < 64 ? thread ^ 32 : 5));
}

TEST_CASE("bar.sync: does not wait for exited threads") {
  const auto got = each_thread(
      "mov.u64 %d9, 3; setp.lt.u32 %p1, %r0, 40; @%p1 bra STAY; st.global.u64 [%d2], %d9; exit;\n"
      "STAY: bar.sync 0; mov.u64 %d9, 4;",
      64);
  CHECK(got[39] == 4);
  CHECK(got[40] == 3);
}

TEST_CASE("invalid barriers: are reported") {
  auto fault = [](const std::string& body, u32 threads = 64) {
    return fault_of([&] { each_thread(body + "\nmov.u64 %d9, 0;", threads); });
  };
  CHECK(mentions(fault("setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW; bar.sync 0; bra END;\nLOW: bar.sync 0;\nEND:"),
                 "divergent barrier: threads of one warp wait at different instructions: bar.sync at PTX line 1"));
  CHECK(mentions(fault("setp.ge.u32 %p1, %r0, 16; @%p1 bra END; bar.sync 0;\nEND:", 32),
                 "divergent barrier: threads of the warp exit without it: bar.sync at PTX line 10"));
  CHECK(mentions(fault("setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1; @!%p1 bar.sync 2;"),
                 "deadlock: of 64 threads 64 wait at a barrier and 0 in a warp"));
  CHECK(mentions(fault("bar.sync 16;"), "there is no barrier 16"));
  CHECK(mentions(fault("bar.sync 0, 33;"), "a barrier of 33 threads, no multiple of 32"));
  CHECK(mentions(fault("bar.sync 0, 96;"), "deadlock"));
  // Unaligned barriers may be reached from different branches.
  CHECK(fault("setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW; barrier.sync 0; bra END;\nLOW: barrier.sync 0;\nEND:") == "");
}

TEST_CASE("scheduling: a lane may wait for another lane") {
  // Lane 0 spins at a smaller address than the code that sets its flag.
  const auto got = each_thread(
      ".shared .u32 flag;\nst.volatile.shared.u32 [flag], 0; bar.warp.sync 0xffffffff;\n"
      "setp.ne.u32 %p1, %r0, 0; @%p1 bra SET;\n"
      "SPIN: ld.volatile.shared.u32 %r1, [flag]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN; bra END;\n"
      "SET: st.volatile.shared.u32 [flag], 1;\nEND: bar.warp.sync 0xffffffff; mov.u64 %d9, 8;");
  for (const u64 value : got) CHECK(value == 8);
}

TEST_CASE("scheduling: a warp or block may wait for another") {
  const auto warps = each_thread(
      ".shared .u32 flag;\nsetp.eq.u32 %p1, %r0, 0; @%p1 st.volatile.shared.u32 [flag], 0; bar.sync 0;\n"
      "setp.ge.u32 %p2, %r0, 32; @%p2 bra SET;\n"
      "SPIN: ld.volatile.shared.u32 %r1, [flag]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN; bra END;\n"
      "SET: st.volatile.shared.u32 [flag], 1;\nEND: mov.u64 %d9, 8;",
      64);
  CHECK(warps[0] == 8);
  for (const char* sleep : {"", "nanosleep.u32 40;"}) {
    DeviceArray<u32> out(3, 0);
    run_body(std::string("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 2; @%p1 bra SET;\nSPIN: ") + sleep +
                 "ld.acquire.gpu.global.u32 %r2, [%d0]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra END;\n"
                 "SET: st.release.gpu.global.u32 [%d0], 1;\nEND: red.global.add.u32 [%d0+4], 1;",
             out.data, nullptr, {{3}, {1}});
    CHECK(out[1] == 3);
  }
}

TEST_CASE("scheduling: waiting forever is reported as a livelock") {
  DeviceArray<u32> out(1, 0);
  options().longest_block = 100000;
  const std::string fault = fault_of(
      [&] { run_body("SPIN: ld.volatile.global.u32 %r1, [%d0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra SPIN;", out.data); });
  CHECK(mentions(fault, "livelock: block runs without an end in kernel k, block (0,0,0), thread (0,0,0)"));
}
