// Tests loads, stores and atomics in every space, and the messages for wrong addresses.
#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

/// Runs a body in one thread and returns its %d9. %d1 holds the address of a copy of `values`.
template <class T>
u64 with_input(const std::string& body, const std::vector<T>& values) {
  const DeviceArray<T> in(values);
  DeviceArray<u64> out(1);
  run_body(body + "\nst.global.u64 [%d0], %d9;", out.data, in.data);
  return out[0];
}

}  // namespace

TEST_CASE("ld: sign-extends or zero-extends narrow types") {
  const std::vector<std::uint8_t> bytes{0x80, 0xff, 0x7f, 0x01, 0x80, 0, 0, 0x80};
  CHECK(with_input("ld.global.u8 %h1, [%d1]; cvt.u64.u16 %d9, %h1;", bytes) == 0x80);
  CHECK(with_input("ld.global.s8 %h1, [%d1]; cvt.s64.s16 %d9, %h1;", bytes) == static_cast<u64>(-128));
  CHECK(with_input("ld.global.s8 %r1, [%d1]; cvt.s64.s32 %d9, %r1;", bytes) == static_cast<u64>(-128));
  CHECK(with_input("ld.global.s16 %r1, [%d1]; cvt.s64.s32 %d9, %r1;", bytes) == static_cast<u64>(-128));
  CHECK(with_input("ld.global.u16 %r1, [%d1]; cvt.u64.u32 %d9, %r1;", bytes) == 0xff80);
  CHECK(with_input("ld.global.s32 %d9, [%d1+4];", bytes) == 0xffffffff80000080);
  CHECK(with_input("ld.global.u32 %d9, [%d1+4];", bytes) == 0x80000080);
  CHECK(with_input("ld.global.u8 %d9, [%d1+3];", bytes) == 1);
  CHECK(with_input("ld.global.b64 %d9, [%d1];", bytes) == 0x80000080017fff80);
}

TEST_CASE("ld: addresses accept positive and negative offsets") {
  const std::vector<u64> values{10, 20, 30, 40};
  CHECK(with_input("ld.global.u64 %d9, [%d1+24];", values) == 40);
  CHECK(with_input("add.s64 %d3, %d1, 16; ld.global.u64 %d9, [%d3+-8];", values) == 20);
  CHECK(with_input("add.s64 %d3, %d1, 16; ld.global.u64 %d9, [%d3-16];", values) == 10);
  CHECK(with_input("ld.u64 %d9, [%d1+16];", values) == 30);  // a generic address
}

TEST_CASE("ld: caching hints and scopes do not change the value") {
  const std::vector<u64> values{10, 20};
  for (const char* name : {"ld.global.nc.u64", "ld.global.ca.u64", "ld.global.cg.b64", "ld.volatile.global.u64",
                           "ld.relaxed.gpu.global.u64", "ld.acquire.sys.global.u64", "ld.weak.global.u64",
                           "ld.global.nc.L1::no_allocate.L2::128B.u64", "ldu.global.u64"}) {
    CAPTURE(name);
    CHECK(with_input(std::string(name) + " %d9, [%d1+8];", values) == 20);
  }
}

TEST_CASE("ld: reads vectors of two, four and eight elements") {
  const std::vector<u32> values{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(with_input("ld.global.v2.u32 {%r1, %r2}, [%d1+8]; mov.b64 %d9, {%r1, %r2};", values) == 0x0000000400000003);
  CHECK(with_input("ld.global.v4.f32 {%r1, %r2, %r3, %r4}, [%d1]; mov.b64 %d9, {%r4, %r2};", values) ==
        0x0000000200000004);
  CHECK(with_input("ld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%d1]; mov.b64 %d9, {%h4, %h3, %h2, %h1};", values) ==
        0x0001000000020000);
  CHECK(with_input("ld.global.v2.b64 {%d3, %d9}, [%d1];", values) == 0x0000000400000003);
  CHECK(with_input("ld.global.v2.f64 {_, %d9}, [%d1+16];", values) == 0x0000000800000007);
  CHECK(with_input("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d1]; cvt.u64.u32 %d9, %r7;", values) ==
        7);
  DeviceArray<u32> out(8, 0);
  run_body(
      "mov.u32 %r1, 11; mov.u32 %r2, 12; st.global.v4.u32 [%d0], {%r1, %r2, 13, 14};\n"
      "mov.u64 %d3, 5; st.global.v2.b64 [%d0+16], {%d3, %d3};",
      out.data);
  CHECK(out.values() == std::vector<u32>{11, 12, 13, 14, 5, 0, 5, 0});
}

TEST_CASE("st: stores the low bytes of the register only") {
  DeviceArray<u64> out(1, ~u64{0});
  run_body("mov.u32 %r1, 0x12345678; st.global.u8 [%d0+1], %r1; st.global.b16 [%d0+4], %r1;", out.data);
  CHECK(out[0] == 0xffff5678ffff78ff);
}

TEST_CASE("shared memory: static and dynamic, own and generic addresses") {
  const std::string before = ".extern .shared .align 16 .b8 dynamic[];\n";
  const std::string body =
      ".shared .align 4 .b8 fixed[40];\n"
      "mov.u32 %r1, fixed; st.shared.u32 [%r1+4], 7; ld.shared.u32 %r2, [fixed+4];\n"
      "mov.u64 %d3, dynamic; cvta.shared.u64 %d4, %d3; mov.u32 %r3, 9; st.u32 [%d4+8], %r3;\n"
      "cvta.to.shared.u64 %d5, %d4; ld.shared.u32 %r4, [%d5+8]; ld.shared.u32 %r5, [dynamic+8];\n"
      "mov.u32 %r6, fixed+4; ld.shared.u32 %r7, [%r6];\n"
      "st.global.v4.u32 [%d0], {%r2, %r4, %r5, %r7};\nmov.u32 %r8, dynamic; mov.u32 %r9, %dynamic_smem_size; "
      "mov.u32 %r10, dynamic+4; sub.u32 %r10, %r10, %r8; st.global.v2.u32 [%d0+16], {%r8, %r9}; st.global.u32 "
      "[%d0+24], %r10;";
  DeviceArray<u32> out(7, 0);
  run_module(kernel_text(body, before), out.data, nullptr, {{}, {}, 12});
  CHECK(out.values() == std::vector<u32>{7, 9, 9, 7, 48, 12, 4});  // dynamic memory follows the 40 bytes, aligned to 16
}

TEST_CASE("local memory: belongs to one thread") {
  const std::vector<u64> got = each_thread(
      ".local .align 8 .b8 depot[24];\n"
      "mov.u64 %d3, depot; cvta.local.u64 %d4, %d3; cvt.u64.u32 %d5, %r0; st.u64 [%d4+8], %d5;\n"
      "cvta.to.local.u64 %d6, %d4; ld.local.u64 %d9, [%d6+8]; st.local.u64 [depot+16], %d9; ld.local.u64 %d9, "
      "[depot+16];",
      40);
  for (u64 t = 0; t < got.size(); ++t) CHECK(got[t] == t);
}

TEST_CASE("isspacep: distinguishes the spaces of generic addresses") {
  auto is = [](const std::string& space, const std::string& address) {
    return each_thread(".local .align 8 .b8 depot[8];\n.shared .align 8 .b8 s[8];\n" + address + " isspacep." + space +
                           " %p1, %d4; selp.u64 %d9, 1, 0, %p1;",
                       1)[0];
  };
  const std::string local = "mov.u64 %d3, depot; cvta.local.u64 %d4, %d3;",
                    shared = "mov.u64 %d3, s; cvta.shared.u64 %d4, %d3;", global = "mov.u64 %d4, %d0;";
  CHECK(is("shared", shared) == 1);
  CHECK(is("shared", local) == 0);
  CHECK(is("shared", global) == 0);
  CHECK(is("local", local) == 1);
  CHECK(is("global", global) == 1);
  CHECK(is("global", shared) == 0);
}

TEST_CASE("variables: kernels read constants, initial values and parameters") {
  const std::string before = ".const .align 4 .u32 c[2] = {5, 6};\n.global .align 8 .u64 g = 77;\n";
  DeviceArray<u64> out(4, 0);
  run_module(kernel_text("ld.const.u32 %r1, [c+4]; cvt.u64.u32 %d3, %r1; mov.u64 %d4, g; ld.global.u64 %d5, [%d4];\n"
                         "ld.global.u64 %d6, [g]; st.global.v2.u64 [%d0], {%d3, %d5};\n"
                         "mov.b64 %d7, k_param_0; ld.param.u64 %d8, [%d7+8]; st.global.v2.u64 [%d0+16], {%d6, %d8};",
                         before),
             out.data, reinterpret_cast<const void*>(99));
  CHECK(out.values() == std::vector<u64>{6, 77, 77, 99});
}

TEST_CASE("variables: keep values that kernels store") {
  const auto module = read(
      kernel_text("ld.global.u32 %r1, [g]; add.u32 %r1, %r1, 1; st.global.u32 [g], %r1;", ".global .u32 g = 40;\n"));
  Launch arguments{{}, {}, 0, std::vector<char>(16)};
  launch(*module->find("k"), arguments);
  launch(*module->find("k"), arguments);
  CHECK(*reinterpret_cast<const u32*>(module->variables.at("g").address) == 42);
}

TEST_CASE("atom: returns the old value and stores the new one") {
  struct Case {
    const char* operation;
    u64 old, operand, expected;
  };
  const u64 minus_one = ~u64{0};
  const Case cases[] = {
      {"add.u32", 0xffffffff, 2, 1},
      {"add.u64", 1, 2, 3},
      {"add.s32", 5, 0xffffffff, 4},
      {"min.s32", 3, 0xffffffff, 0xffffffff},
      {"min.u32", 3, 0xffffffff, 3},
      {"max.s32", 3, 0xffffffff, 3},
      {"max.u64", 3, minus_one, minus_one},
      {"min.s64", 3, minus_one, minus_one},
      {"exch.b32", 3, 9, 9},
      {"exch.b64", 3, minus_one, minus_one},
      {"and.b32", 0xff0f, 0x0fff, 0x0f0f},
      {"or.b64", 1, u64{1} << 40, (u64{1} << 40) + 1},
      {"xor.b32", 5, 6, 3},
      {"inc.u32", 7, 7, 0},
      {"inc.u32", 6, 7, 7},
      {"dec.u32", 0, 7, 7},
      {"dec.u32", 9, 7, 7},
      {"dec.u32", 5, 7, 4},
      {"add.f32", std::bit_cast<u32>(1.5f), std::bit_cast<u32>(0.25f), std::bit_cast<u32>(1.75f)},
      {"add.f64", std::bit_cast<u64>(1.5), std::bit_cast<u64>(0.25), std::bit_cast<u64>(1.75)},
  };
  for (const Case& c : cases) {
    CAPTURE(c.operation);
    const std::string name(c.operation), value = name.ends_with("64") ? "%d5" : "%r5",
                                         old = name.ends_with("64") ? "%d6" : "%r6";
    DeviceArray<u64> out(3, 0);
    out[0] = c.old;
    out[1] = c.operand;
    run_body("mov.u64 %d6, 0; ld.global.u64 %d5, [%d0+8]; cvt.u32.u64 %r5, %d5; atom.global." + name + " " + old +
                 ", [%d0], " + value + ";\n" + (name.ends_with("64") ? "" : "cvt.u64.u32 %d6, %r6;") +
                 "st.global.u64 [%d0+16], %d6;",
             out.data);
    CHECK(out[0] == c.expected);
    CHECK(out[2] == c.old);
    out[0] = c.old;
    run_body(
        "ld.global.u64 %d5, [%d0+8]; cvt.u32.u64 %r5, %d5; red.relaxed.gpu.global." + name + " [%d0], " + value + ";",
        out.data);
    CHECK(out[0] == c.expected);
  }
}

TEST_CASE("atom.cas: compares and swaps 16, 32 and 64 bits") {
  DeviceArray<u64> out(2, 0);
  out[0] = 5;
  run_body("atom.global.cas.b64 %d3, [%d0], 5, 8; atom.global.cas.b64 %d4, [%d0], 5, 9; st.global.u64 [%d0+8], %d4;",
           out.data);
  CHECK(out[0] == 8);
  CHECK(out[1] == 8);
  run_body("mov.u16 %h1, 8; mov.u16 %h2, 3; atom.global.cas.b16 %h3, [%d0], %h1, %h2;", out.data);
  CHECK(out[0] == 3);
  run_body("atom.acq_rel.gpu.global.cas.b32 %r3, [%d0], 3, 4;", out.data);
  CHECK(out[0] == 4);
}

TEST_CASE("atom: adds the values of all threads in many blocks") {
  DeviceArray<u32> out(2, 0);
  run_body(
      ".shared .u32 s;\nsetp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; atom.shared.add.u32 %r1, [s], "
      "2;\n"
      "bar.sync 0; ld.shared.u32 %r2, [s]; red.global.add.u32 [%d0], 1;\n"
      "setp.eq.u32 %p1, %r0, 69; @%p1 red.global.add.u32 [%d0+4], %r2;",
      out.data, nullptr, {{3, 2}, {70}});
  CHECK(out[0] == 6 * 70);
  CHECK(out[1] == 6 * 140);
}

TEST_CASE("out of bounds access: the report names address and thread") {
  DeviceArray<u32> out(100, 0);
  const std::string fault = fault_of([&] {
    run_body(
        "mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r0; mul.wide.u32 %d3, %r2, 4; add.s64 %d3, %d3, %d0;\n"
        "st.global.u32 [%d3], 1;",
        out.data, nullptr, {{4}, {32}});
  });
  CHECK(fault ==
        "out of bounds global store of 4 bytes at " + hexadecimal(reinterpret_cast<std::uintptr_t>(out.data + 100)) +
            " (0 bytes past the end of an allocation of 400 bytes): st.global.u32 at PTX line 11 in kernel k, block "
            "(3,0,0), thread (4,0,0)");
}

TEST_CASE("invalid access: each kind has its own message") {
  DeviceArray<u32> out(4, 0);
  auto fault = [&](const std::string& body) { return fault_of([&] { run_body(body, out.data); }); };
  CHECK(mentions(fault("ld.global.u32 %r1, [%d0+16];"), "out of bounds global load of 4 bytes at"));
  CHECK(mentions(fault("ld.global.u64 %d3, [%d0+12];"), "(reaching past the end of an allocation of 16 bytes)"));
  CHECK(mentions(fault("ld.u32 %r1, [%d0+-4];"), "(4 bytes before the start of an allocation of 16 bytes)"));
  CHECK(mentions(fault("ld.global.u32 %r1, [%d1];"), "global load of 4 bytes at 0x0 (in no live allocation)"));
  CHECK(mentions(fault("atom.global.add.u32 %r1, [%d0+16], 1;"), "out of bounds global atomic access"));
  CHECK(mentions(fault("ld.global.u32 %r1, [%d0+2];"), "misaligned access of 4 bytes"));
  CHECK(mentions(fault("ld.global.v2.u32 {%r1, %r2}, [%d0+4];"), "misaligned access of 8 bytes"));
  const std::string shared = ".shared .align 8 .b8 s[8];\nmov.u32 %r1, s; ";
  CHECK(mentions(fault(shared + "st.shared.u32 [%r1+8], 1;"),
                 "out of bounds shared store of 4 bytes at 0x8 (the block has 8 bytes)"));
  CHECK(mentions(fault(".shared .align 4 .b8 odd[7];\nld.shared.u32 %r1, [odd+4];"), "(the block has 7 bytes)"));
  CHECK(mentions(fault(shared + "ld.shared.u16 %h1, [%r1+1];"), "misaligned access of 2 bytes at 0x1"));
  CHECK(mentions(fault(".local .align 8 .b8 l[16];\nst.local.u32 [l+16], 1;"),
                 "out of bounds local store of 4 bytes at 0x10 (there are 16 bytes)"));
  CHECK(mentions(fault(".local .align 8 .b8 l[16];\nst.local.u32 [l+2], 1;"), "misaligned access of 4 bytes at 0x2"));
  CHECK(mentions(fault("mov.b64 %d3, k_param_0; ld.param.u64 %d4, [%d3+16];"),
                 "out of bounds parameter load of 8 bytes at 0x10"));
}

TEST_CASE("local memory: accepts generic addresses, names the faulty lane") {
  const std::string local = ".local .align 8 .b8 l[16];\nmov.u64 %d3, l; cvta.local.u64 %d4, %d3; ";
  const auto last = each_thread(local + "cvt.u64.u32 %d5, %r0; st.u64 [%d4+8], %d5; ld.u64 %d9, [%d4+8];", 64);
  for (std::size_t i = 0; i < last.size(); ++i) CHECK(last[i] == i);
  DeviceArray<u32> out(1, 0);
  const auto fault = [&](int offset, const std::string& access) {
    const std::string body = "setp.eq.u32 %p1, %r0, 17; selp.u64 %d5, " + std::to_string(offset) +
                             ", 0, %p1; add.s64 %d4, %d4, %d5; " + access;
    const std::string said = fault_of([&] { run_body(local + body, out.data, nullptr, {{}, {32}}); });
    CHECK(mentions(said, "thread (17,0,0)"));
    return said;
  };
  CHECK(mentions(fault(12, "ld.u64 %d9, [%d4];"), "out of bounds local load of 8 bytes at 0xc (there are 16 bytes)"));
  CHECK(mentions(fault(14, "st.u32 [%d4], 1;"), "out of bounds local store of 4 bytes at 0xe (there are 16 bytes)"));
  CHECK(mentions(fault(1, "ld.u32 %r1, [%d4];"), "misaligned access of 4 bytes at 0x1"));
  CHECK(mentions(fault(16, "ld.u32 %r1, [%d4];"), "(in no live allocation)"));  // the word belongs to the next thread
}

TEST_CASE("uninitialised memory: always has the same poison") {
  CHECK(each_thread(".shared .align 8 .u64 s;\nld.shared.u64 %d9, [s];", 1)[0] == 0xcbcbcbcbcbcbcbcb);
  CHECK(each_thread(".local .align 8 .b8 l[8];\nld.local.u64 %d9, [l];", 1)[0] == 0xcbcbcbcbcbcbcbcb);
  CHECK(each_thread("", 1)[0] == 0xbabababababababa);  // a register that is not written
}
