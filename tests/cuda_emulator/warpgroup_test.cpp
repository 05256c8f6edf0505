// Tests wgmma: its values, and the reports if a necessary instruction is missing.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/evaluate.hpp"
#include "cuda_emulator/real16.hpp"
#include "cuda_emulator/warpgroup_example.hpp"

using namespace gatefold::cuda_emulator;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

namespace {

std::string list(const std::string& prefix, int first, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + prefix + std::to_string(first + i);
  return text + "}";
}

struct Shapes {
  int columns = 16;
  SharedLayout a_layout{128, true}, b_layout{128, true};
  std::string scale_d = "1";
  int negate_a = 1, negate_b = 1;
};

/// Computes D = A B + D with 64 x columns numbers by one warpgroup. The threads first copy `image`, the contents of
/// shared memory, from global memory.
struct Example : Shapes {
  std::vector<double> a, b, c;
  u32 b_start, bytes;
  u64 a_descriptor, b_descriptor;
  std::vector<u16> image;

  double& a_at(int row, int k) { return a[static_cast<std::size_t>(row * 16 + k)]; }
  double& b_at(int k, int column) { return b[static_cast<std::size_t>(column * 16 + k)]; }
  double& c_at(int row, int column) { return c[static_cast<std::size_t>(row * columns + column)]; }

  explicit Example(const Shapes& shapes = {})
      : Shapes(shapes),
        a(64 * 16),
        b(static_cast<std::size_t>(16 * columns)),
        c(static_cast<std::size_t>(64 * columns)) {
    std::mt19937 random(1);
    std::uniform_int_distribution<int> integer(-8, 8);
    for (auto* numbers : {&a, &b, &c})
      for (double& x : *numbers) x = integer(random);
    const Offsets of_a = compact(a_layout, 64), of_b = compact(b_layout, columns);
    b_start = (of_a.bytes + 1023) / 1024 * 1024;
    bytes = b_start + (of_b.bytes + 1023) / 1024 * 1024;
    a_descriptor = descriptor(a_layout, 0, of_a.leading, of_a.stride);
    b_descriptor = descriptor(b_layout, b_start, of_b.leading, of_b.stride);
    image.assign(bytes / 2, BFloat::rounded(1e30).bits);
    for (int k = 0; k < 16; ++k) {
      for (int row = 0; row < 64; ++row) {
        image[place(a_layout, 0, of_a.leading, of_a.stride, row, k) / 2] = BFloat::rounded(a_at(row, k)).bits;
      }
      for (int column = 0; column < columns; ++column) {
        image[place(b_layout, b_start, of_b.leading, of_b.stride, column, k) / 2] =
            BFloat::rounded(b_at(k, column)).bits;
      }
    }
  }

  double expected(int row, int column) {
    double sum = scale_d == "1" ? c_at(row, column) : 0;
    for (int k = 0; k < 16; ++k) sum += negate_a * a_at(row, k) * negate_b * b_at(k, column);
    return sum;
  }

  /// Returns PTX that declares shared memory and copies the image with 128 threads.
  std::string copy() const {
    return ".shared .align 1024 .b8 s[" + std::to_string(bytes) + "];\n.reg .f32 %f<300>;\nmov.u32 %r1, %r0;\n" +
           "COPY: shl.b32 %r2, %r1, 4; cvt.u64.u32 %d3, %r2; add.s64 %d4, %d1, %d3; mov.u32 %r3, s;\n"
           "add.u32 %r3, %r3, %r2; ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d4];\n"
           "st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7}; add.u32 %r1, %r1, 128;\nsetp.lt.u32 %p1, %r1, " +
           std::to_string(bytes / 16) + "; @%p1 bra COPY;\n";
  }

  /// Returns PTX that loads D, which is after the image, into %f0 ....
  std::string load() const {
    std::string text = "mul.wide.u32 %d5, %r0, " + std::to_string(2 * columns) + "; add.s64 %d6, %d1, %d5;\n";
    for (int i = 0; i < columns / 2; ++i) {
      text +=
          "ld.global.f32 %f" + std::to_string(i) + ", [%d6+" + std::to_string(bytes + 4 * static_cast<u32>(i)) + "];\n";
    }
    return text + "mov.u64 %d10, " + std::to_string(a_descriptor) + "; mov.u64 %d11, " + std::to_string(b_descriptor) +
           ";\nsetp.eq.u32 %p2, 0, 0; setp.eq.u32 %p3, 0, 1;\n";
  }
  std::string multiply(int first_register = 0) const {
    return "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32.bf16.bf16 " +
           list("%f", first_register, columns / 2) + ", %d10, %d11, " + scale_d + ", " + std::to_string(negate_a) +
           ", " + std::to_string(negate_b) + ", " + (a_layout.k_major ? "0" : "1") + ", " +
           (b_layout.k_major ? "0" : "1") + ";\n";
  }
  std::string store(int first_register = 0) const {
    std::string text = "mul.wide.u32 %d7, %r0, " + std::to_string(2 * columns) + "; add.s64 %d7, %d7, %d0;\n";
    for (int i = 0; i < columns / 2; ++i) {
      text += "st.global.f32 [%d7+" + std::to_string(4 * i) + "], %f" + std::to_string(first_register + i) + ";\n";
    }
    return text;
  }

  /// Runs a body and returns D in row-major order. As in the figure of the PTX ISA, register i of thread t is in row 16
  /// (t / 32) + t % 32 / 4 + 8 (i / 2 % 2) and column 8 (i / 4) + 2 (t % 4) + i % 2.
  std::vector<float> run(const std::string& body, u32 threads = 128) {
    std::vector<char> second(bytes + static_cast<std::size_t>(4 * 64 * columns));
    std::memcpy(second.data(), image.data(), bytes);
    each([&](int row, int column, std::size_t at) {
      const auto x = static_cast<float>(c_at(row, column));
      std::memcpy(second.data() + bytes + 4 * at, &x, 4);
    });
    const DeviceArray<char> in(second);
    const DeviceArray<float> out(static_cast<std::size_t>(64 * columns), -7);
    run_body(body, out.data, in.data, {{}, {threads}});
    std::vector<float> d(static_cast<std::size_t>(64 * columns));
    each([&](int row, int column, std::size_t at) {
      d[static_cast<std::size_t>(row * columns + column)] = out.data[at];
    });
    return d;
  }
  template <class F>
  void each(F f) const {
    for (int t = 0; t < 128; ++t) {
      for (int i = 0; i < columns / 2; ++i) {
        f(16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * (t % 4) + i % 2,
          static_cast<std::size_t>(t * columns / 2 + i));
      }
    }
  }

  bool right(const std::vector<float>& d) {
    bool same = true;
    for (int row = 0; row < 64; ++row)
      for (int column = 0; column < columns; ++column)
        same = same && d[static_cast<std::size_t>(row * columns + column)] == expected(row, column);
    return same;
  }
};

const std::string visible = "fence.proxy.async.shared::cta; bar.sync 0;\n", fence = "wgmma.fence.sync.aligned;\n",
                  commit = "wgmma.commit_group.sync.aligned;\n", await = "wgmma.wait_group.sync.aligned 0;\n";

struct Hopper {
  Hopper() { options().compute_capability = 90; }  // main.cpp resets it before every test case
};

/// The report for a body, and whether its values are right.
struct Outcome {
  std::string report;
  bool right = false;
};
Outcome outcome(Example example, const std::string& body, u32 threads = 128) {
  Outcome result;
  result.report = fault_of([&] { result.right = example.right(example.run(body, threads)); });
  if (result.report.empty() && !races().empty()) result.report = races().front();
  races().clear();
  return result;
}
bool nan(float x) { return std::isnan(x); }

}  // namespace

TEST_CASE("wgmma: integers are exact for every layout of operands") {
  const Hopper device;
  for (const SharedLayout a_layout : all_layouts) {
    for (const SharedLayout b_layout : all_layouts) {
      Example example({24, a_layout, b_layout});
      CAPTURE(a_layout.swizzle);
      CAPTURE(a_layout.k_major);
      CAPTURE(b_layout.swizzle);
      CAPTURE(b_layout.k_major);
      CHECK(example.right(example.run(example.copy() + visible + example.load() + fence + example.multiply() + commit +
                                      await + example.store())));
    }
  }
}

TEST_CASE("wgmma: accepts any columns, both signs, with or without D") {
  const Hopper device;
  auto check = [](const Shapes& shapes) {
    Example example(shapes);
    CHECK(example.right(example.run(example.copy() + visible + example.load() + fence + example.multiply() + commit +
                                    await + example.store())));
  };
  for (int columns = 8; columns <= 256; columns += 8) {
    CAPTURE(columns);
    check({columns, {128, true}, {128, false}});
  }
  for (const int negate_a : {1, -1})
    for (const int negate_b : {1, -1})
      for (const std::string scale : {"0", "1", "%p3"}) check({16, {64, true}, {32, true}, scale, negate_a, negate_b});
}

TEST_CASE("wgmma: products of four sub-tiles add up in D") {
  const Hopper device;
  // A has 64 values of k, in rows of 128 bytes. Each product takes 16 of them, and B is the same for all products.
  Example example;
  std::vector<double> sums(64 * 16);
  std::mt19937 random(5);
  std::uniform_int_distribution<int> integer(-8, 8);
  std::string products;
  for (int part = 0; part < 4; ++part) {
    for (int row = 0; row < 64; ++row) {
      double numbers[16];
      for (int k = 0; k < 16; ++k) {
        numbers[k] = integer(random);
        const u32 byte = static_cast<u32>(row * 128 + ((2 * part + k / 8) ^ (row % 8)) * 16 + k % 8 * 2);
        example.image[byte / 2] = BFloat::rounded(numbers[k]).bits;
      }
      for (int column = 0; column < 16; ++column)
        for (int k = 0; k < 16; ++k)
          sums[static_cast<std::size_t>(row * 16 + column)] += numbers[k] * example.b_at(k, column);
    }
    products += example.multiply() + "add.u64 %d10, %d10, 2;\n";
  }
  const auto d =
      example.run(example.copy() + visible + example.load() + fence + products + commit + await + example.store());
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 16; ++column) {
      const auto at = static_cast<std::size_t>(row * 16 + column);
      CHECK(d[at] == sums[at] + example.c_at(row, column));
    }
  }
}

TEST_CASE("wgmma: two warpgroups multiply the same matrices") {
  const Hopper device;
  Example example;
  const std::string body =
      example.copy() + visible + example.load() + fence + example.multiply() + commit + await +
      "setp.ge.u32 %p4, %r0, 128; @%p4 sub.u32 %r0, %r0, 128;\n@%p4 bra STORE; bra END;\nSTORE: " + example.store() +
      "END:";
  // Threads from 128 on would copy the same bytes again, which would be a race, so they skip the copy.
  std::string text = body;
  text.replace(text.find("COPY:"), 0, "setp.ge.u32 %p4, %r0, 128; @%p4 bra COPIED;\n");
  text.replace(text.find(visible), 0, "COPIED: ");
  // The threads of the second warpgroup load the same D as those of the first.
  text.replace(text.find("mul.wide.u32 %d5"), 0, "and.b32 %r8, %r0, 127;\n");
  text.replace(text.find("mul.wide.u32 %d5, %r0"), 21, "mul.wide.u32 %d5, %r8");
  CHECK(example.right(example.run(text, 256)));
}

TEST_CASE("wgmma: D is undefined until a wait for its group") {
  const Hopper device;
  Example example;
  const std::string start = example.copy() + visible + example.load() + fence;
  CHECK(nan(example.run(start + example.multiply() + commit + example.store())[5]));
  CHECK(nan(
      example.run(start + example.multiply() + commit + "wgmma.wait_group.sync.aligned 1;\n" + example.store())[5]));
  CHECK(nan(example.run(start + example.multiply() + await + example.store())[5]));  // the product is in no group
  CHECK(nan(example.run(start + example.multiply() + commit + example.multiply() + commit +
                        "wgmma.wait_group.sync.aligned 1;\n" + example.store())[5]));
  // After the wait, D of the first of two groups is defined. Each group has separate registers.
  const std::string two = example.multiply() + commit + example.multiply(100) + commit;
  const std::string one = "wgmma.wait_group.sync.aligned 1;\n";
  CHECK(example.right(example.run(start + two + one + example.store())));
  CHECK(nan(example.run(start + two + one + example.store(100))[5]));
  // Three products add to one accumulator, and each wait leaves the latest product unfinished, as in a pipelined loop.
  const std::string again = example.multiply() + commit + one;
  const auto sum = example.run(start + again + fence + again + fence + again + await + example.store());
  CHECK(sum[0] == 3 * example.expected(0, 0) - 2 * example.c_at(0, 0));
  // Arithmetic with a promise gives NaN, even after the wait. A copy of a promise becomes the value.
  std::string add, copy;
  for (int i = 0; i < 8; ++i) {
    const std::string d = "%f" + std::to_string(i), other = "%f" + std::to_string(200 + i);
    add += "add.f32 " + d + ", " + d + ", 0f3F800000;\n";
    copy += "mov.f32 " + other + ", " + d + ";\n";
  }
  CHECK(nan(example.run(start + example.multiply() + commit + add + await + example.store())[5]));
  CHECK(example.right(example.run(start + example.multiply() + commit + copy + await + example.store(200))));
  // A compiler may move registers between the products of a chain.
  Example chain;
  const auto d = chain.run(start + chain.multiply() + copy + chain.multiply(200) + commit + await + chain.store(200));
  CHECK(d[0] == 2 * chain.expected(0, 0) - chain.c_at(0, 0));
}

TEST_CASE("wgmma: may read shared memory until the wait") {
  const Hopper device;
  Example example;
  const std::string start = example.copy() + visible + example.load() + fence + example.multiply() + commit;
  const std::string overwrite =
      "mov.u32 %r8, 0; @%p1 bra X; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], %r8;\nX: ";
  CHECK(example.right(example.run(start + await + "bar.sync 0;\n" + overwrite + example.store())));
  const Outcome early = outcome(example, start + overwrite + await + example.store());
  CHECK(mentions(early.report, "data race: shared load of 16 bytes at 0x0"));
  CHECK(!early.right);
  // Shared memory is read when the first warp waits. After its own wait, a thread of another warp knows that all reads
  // are done.
  const std::string other_warp = "setp.eq.u32 %p1, %r0, 96; @%p1 st.shared.u32 [s], %r8;\n";
  CHECK(outcome(example, start + await + "mov.u32 %r8, 0;\n" + other_warp + example.store()).report == "");
}

TEST_CASE("wgmma: ordinary stores need fence.proxy.async and a barrier") {
  const Hopper device;
  const Example example;
  const std::string proxy = "fence.proxy.async;\n", barrier = "bar.sync 0;\n";
  const std::string end = example.load() + fence + example.multiply() + commit + await + example.store();
  auto report = [&](const std::string& between) { return outcome(example, example.copy() + between + end).report; };
  CHECK(report(proxy + barrier) == "");
  CHECK(report(barrier + proxy) == "");  // the reading threads execute the fence after the barrier
  CHECK(mentions(report(barrier), "no fence.proxy.async: shared load of 16 bytes at 0x"));
  CHECK(mentions(report("fence.proxy.async.global;\n" + barrier), "no fence.proxy.async"));
  CHECK(mentions(report(proxy), "data race: shared load of 16 bytes at 0x"));
  CHECK(mentions(report(proxy), "wgmma.mma_async"));
  // The last thread executes the fence before it writes.
  const std::string late =
      proxy + "setp.eq.u32 %p1, %r0, 127; @%p1 ld.shared.u32 %r8, [s+2032]; @%p1 st.shared.u32 [s+2032], %r8;\n";
  CHECK(mentions(report(late + barrier), "no fence.proxy.async"));
  CHECK(mentions(report(late + barrier), "thread (127,0,0): st.shared.u32"));
  CHECK(report(late + proxy + barrier) == "");
  // The order can come from a barrier of only the four warps, or from barriers of the warps and an mbarrier.
  CHECK(report(proxy + "bar.sync 3, 128;\n") == "");
  CHECK(mentions(report("bar.sync 3, 128;\n"), "no fence.proxy.async"));
  const std::string init =
      ".shared .align 8 .b8 m[8]; mov.u32 %r9, m; setp.eq.u32 %p1, %r0, 0;\n"
      "@%p1 mbarrier.init.shared.b64 [%r9], 4; bar.sync 0;\n";
  const std::string elected =
      "bar.warp.sync 0xffffffff; and.b32 %r8, %r0, 31; setp.eq.u32 %p1, %r8, 0;\n"
      "@%p1 mbarrier.arrive.shared.b64 _, [%r9];\n"
      "M: mbarrier.try_wait.parity.shared.b64 %p1, [%r9], 0; @!%p1 bra M;\n";
  const auto by_mbarrier = [&](const std::string& between) {
    std::string text = example.copy();
    text.insert(text.find("mov.u32 %r1, %r0;"), init);
    return outcome(example, text + between + end).report;
  };
  CHECK(by_mbarrier(proxy + elected) == "");
  CHECK(mentions(by_mbarrier(elected), "no fence.proxy.async"));
}

TEST_CASE("wgmma: operands by cp.async need a wait, then a fence") {
  const Hopper device;
  const Example example;
  std::string copy = example.copy();
  const std::string load = "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d4];",
                    store = "st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};";
  copy.replace(copy.find(load), load.size(), "");
  copy.replace(copy.find(store), store.size(), "cp.async.cg.shared.global [%r3], [%d4], 16;");
  const std::string arrived = "cp.async.wait_all;\n";
  const std::string end = example.load() + fence + example.multiply() + commit + await + example.store();
  CHECK(outcome(example, copy + arrived + visible + end).right);
  CHECK(outcome(example, copy + arrived + visible + end).report == "");
  CHECK(mentions(outcome(example, copy + arrived + "bar.sync 0;\n" + end).report, "no fence.proxy.async"));
  // The fence applies only to copies that have arrived.
  CHECK(mentions(outcome(example, copy + "fence.proxy.async;\n" + arrived + "bar.sync 0;\n" + end).report,
                 "no fence.proxy.async"));
  CHECK(!outcome(example, copy + visible + end).right);  // poison
}

TEST_CASE("invalid wgmma: each kind has its own message") {
  const Hopper device;
  const Example example;
  const std::string start = example.copy() + visible + example.load(), end = commit + await + example.store();
  auto report = [&](const std::string& body, u32 threads = 128) { return outcome(example, body, threads).report; };
  CHECK(report(start + fence + example.multiply() + end) == "");
  CHECK(mentions(report(start + example.multiply() + end),
                 "no wgmma.fence between other uses of the registers of D and the product: wgmma.mma_async"));
  CHECK(mentions(report(start + fence + example.multiply() + commit + await + example.multiply() + end),
                 "no wgmma.fence between"));
  CHECK(report(start + fence + example.multiply() + commit + await + fence + example.multiply() + end) == "");
  CHECK(mentions(report(start + fence + "setp.lt.u32 %p1, %r0, 96; @%p1 bra A; bra END;\nA: " + example.multiply() +
                        commit + await + "END:"),
                 "deadlock: other warps of the warpgroup do not issue the products that this one waits for: "
                 "wgmma.wait_group"));
  CHECK(mentions(
      report(start + fence + "setp.ge.u32 %p1, %r0, 32; @%p1 add.u64 %d10, %d10, 2;\n" + example.multiply() + end),
      "the warps of a warpgroup multiply different matrices"));
  CHECK(mentions(
      report(start + fence + "setp.eq.u32 %p1, %r0, 3; @%p1 add.u64 %d10, %d10, 2;\n" + example.multiply() + end),
      "the lanes of a warp name different matrices"));
  CHECK(mentions(report(start + fence + "setp.ne.u32 %p1, %r0, 3; @%p1 " + example.multiply() + end),
                 "mismatch: lanes of mask 0xffffffff wait in wgmma.mma_async"));
  CHECK(mentions(report(start + fence + "add.u64 %d11, %d11, 64;\n" + example.multiply() + end),
                 "out of bounds shared load of 16 bytes at 0x"));
  CHECK(mentions(
      report(start + fence + "or.b64 %d10, %d10, " + std::to_string(u64{1} << 49) + ";\n" + example.multiply() + end),
      "refused: base offsets of descriptors are not modelled"));
  CHECK(mentions(
      report(".reg .f32 %f<8>; mov.u64 %d10, 0; mov.u64 %d11, 0;\n" + fence + example.multiply() + commit + await, 96),
      "a warpgroup is four warps, and the block ends within it"));
  // A wrong swizzle, a wrong offset, or a matrix instead of its transpose gives wrong values.
  const auto wrong = [&](const std::string& change) {
    return !outcome(example, start + change + fence + example.multiply() + end).right;
  };
  CHECK(!wrong(""));
  CHECK(wrong("xor.b64 %d10, %d10, " + std::to_string(u64{3} << 62) + ";\n"));
  CHECK(wrong("xor.b64 %d11, %d11, " + std::to_string(u64{1} << 62) + ";\n"));
  CHECK(wrong("sub.u64 %d10, %d10, " + std::to_string(u64{8} << 32) + ";\n"));
  Example transposed = example;
  transposed.a_layout.k_major = false;
  CHECK(!outcome(example, start + fence + transposed.multiply() + end).right);
}
