// Tests ldmatrix and mma: the fragments must match the formulas of the PTX ISA.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/evaluate.hpp"
#include "cuda_emulator/real16.hpp"

using namespace gatefold::cuda_emulator;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

namespace {

/// PTX in which thread t copies 16 bytes to row t of s. The numbers of the matrices are at the second pointer, %d1.
const std::string fill =
    ".shared .align 16 .b8 s[512];\nmov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r1, %r1, %r2;\n"
    "cvt.u64.u32 %d3, %r2; add.s64 %d4, %d1, %d3; add.s64 %d5, %d0, %d3;\n"
    "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d4]; st.shared.v4.u32 [%r1], {%r4, %r5, %r6, %r7};\n";
const std::string warp_barrier = "bar.warp.sync 0xffffffff;\n";

/// Returns the registers %r4 ... of every lane after an ldmatrix of four matrices. The number in matrix n, row r and
/// column c is 100 n + 10 r + c. Registers that the instruction does not write are 0.
std::vector<u32> loaded(const std::string& instruction) {
  std::vector<u16> numbers;
  for (int n = 0; n < 4; ++n)
    for (int r = 0; r < 8; ++r)
      for (int c = 0; c < 8; ++c) numbers.push_back(static_cast<u16>(100 * n + 10 * r + c));
  const DeviceArray<u16> in(numbers);
  DeviceArray<u32> out(4 * 32, 0);
  run_body(fill + warp_barrier + "mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r7, 0;\n" + instruction +
               "\nst.global.v4.u32 [%d5], {%r4, %r5, %r6, %r7};",
           out.data, in.data, {{}, {32}});
  return out.values();
}

struct Matrix {
  int rows, columns;
  std::vector<double> numbers = std::vector<double>(static_cast<std::size_t>(rows * columns));
  double& at(int row, int column) { return numbers[static_cast<std::size_t>(row * columns + column)]; }
};

/// Computes D = A B + C by mma.m16n8k<depth>. Element i of a thread's fragment is half i % 2 of register i / 2 for A
/// and B, and register i for C and D. The row and column of an element follow from formulas of the PTX ISA.
struct Mma {
  int depth;

  template <class F>
  void each_of_a(F f) const {
    each(depth / 2, [&](int lane, int i) {
      const int row = i % 4 < 2 ? lane / 4 : lane / 4 + 8;
      f(lane, i, row, lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8));
    });
  }
  template <class F>
  void each_of_b(F f) const {
    each(depth / 4, [&](int lane, int i) { f(lane, i, lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane / 4); });
  }
  template <class F>
  static void each_of_c(F f) {
    each(4, [&](int lane, int i) { f(lane, i, i < 2 ? lane / 4 : lane / 4 + 8, lane % 4 * 2 + (i & 1)); });
  }

  Matrix operator()(Matrix a, Matrix b, Matrix c) const {
    // 16 registers a lane: 4 of C, up to 4 of A, up to 2 of B.
    std::vector<u32> registers(16 * 32, 0);
    auto put = [&](int lane, int first, int i, double x) {
      registers[static_cast<std::size_t>(16 * lane + first + i / 2)] |= u32{BFloat::rounded(x).bits} << 16 * (i % 2);
    };
    each_of_a([&](int lane, int i, int row, int k) { put(lane, 4, i, a.at(row, k)); });
    each_of_b([&](int lane, int i, int k, int column) { put(lane, 8, i, b.at(k, column)); });
    each_of_c([&](int lane, int i, int row, int column) {
      registers[static_cast<std::size_t>(16 * lane + i)] = std::bit_cast<u32>(static_cast<float>(c.at(row, column)));
    });
    const DeviceArray<u32> in(registers);
    DeviceArray<float> out(4 * 32);
    const std::string fragments = depth == 16 ? "{%r8, %r9, %r10, %r11}, {%r12, %r13}" : "{%r8, %r9}, {%r12}";
    run_body(
        "mul.wide.u32 %d3, %r0, 64; add.s64 %d3, %d3, %d1; mul.wide.u32 %d4, %r0, 16; add.s64 %d4, %d4, %d0;\n"
        "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d3]; ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%d3+16];\n"
        "ld.global.v2.u32 {%r12, %r13}, [%d3+32];\nmma.sync.aligned.m16n8k" +
            std::to_string(depth) + ".row.col.f32.bf16.bf16.f32 {%r4, %r5, %r6, %r7}, " + fragments +
            ", {%r4, %r5, %r6, %r7};\nst.global.v4.u32 [%d4], {%r4, %r5, %r6, %r7};",
        out.data, in.data, {{}, {32}});
    Matrix d{16, 8};
    each_of_c([&](int lane, int i, int row, int column) { d.at(row, column) = out.data[4 * lane + i]; });
    return d;
  }

 private:
  template <class F>
  static void each(int elements, F f) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < elements; ++i) f(lane, i);
  }
};

struct ComputeCapability {
  explicit ComputeCapability(int now) : before(std::exchange(options().compute_capability, now)) {}
  ~ComputeCapability() { options().compute_capability = before; }
  int before;
};

std::string fault(const std::string& body, u32 threads = 32) {
  DeviceArray<u32> out(128, 0);
  const std::string text = fault_of([&] { run_body(body, out.data, out.data, {{}, {threads}}); });
  races().clear();
  return text;
}

const std::string mma =
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r4, %r5, %r6, %r7}, {%r8, %r9, %r10, %r11}, {%r12, %r13}, "
    "{%r4, %r5, %r6, %r7};\n";

}  // namespace

TEST_CASE("ldmatrix: each lane gets two numbers per matrix") {
  for (const int count : {1, 2, 4}) {
    const std::string name = "x" + std::to_string(count);
    for (const bool transposed : {false, true}) {
      for (const std::string space : {".shared", ".shared::cta"}) {
        CAPTURE(name);
        CAPTURE(transposed);
        const std::string registers = count == 1 ? "{%r4}" : count == 2 ? "{%r4, %r5}" : "{%r4, %r5, %r6, %r7}";
        const auto got = loaded("ldmatrix.sync.aligned.m8n8." + name + (transposed ? ".trans" : "") + space + ".b16 " +
                                registers + ", [%r1];");
        for (int lane = 0; lane < 32; ++lane) {
          for (int n = 0; n < 4; ++n) {
            const int row = lane / 4, column = lane % 4 * 2;
            const int low = 100 * n + (transposed ? 10 * column + row : 10 * row + column);
            const int high = low + (transposed ? 10 : 1);
            CHECK(got[static_cast<std::size_t>(4 * lane + n)] == (n < count ? static_cast<u32>(low | high << 16) : 0));
          }
        }
      }
    }
  }
}

TEST_CASE("ldmatrix: every row has its own address and offset") {
  // Lane r gives the address of row (3 r + 5) % 8, minus 16.
  const auto got = loaded(
      "mad.lo.u32 %r8, %r0, 3, 5; and.b32 %r8, %r8, 7; shl.b32 %r8, %r8, 4; mov.u32 %r9, s; add.u32 %r8, %r8, %r9;\n"
      "sub.u32 %r8, %r8, 16; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r8+16];");
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 low = (3 * (lane / 4) + 5) % 8 * 10 + lane % 4 * 2;
    CHECK(got[4 * lane] == (low | (low + 1) << 16));
  }
}

TEST_CASE("ldmatrix: checks bounds, alignment and races per row") {
  const std::string load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, ";
  CHECK(mentions(fault(fill + warp_barrier + load + "[%r1+16];"),
                 "out of bounds shared load of 16 bytes at 0x200 (the block has 512 bytes): ldmatrix"));
  CHECK(mentions(fault(fill + warp_barrier + load + "[%r1+8];"), "misaligned access of 16 bytes at 0x8: ldmatrix"));
  // With one matrix, the addresses of lanes 8 and above are not used.
  const std::string one = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r1+384];";
  CHECK(fault(fill + warp_barrier + one) == "");

  // Lane r reads the row that lane r XOR 1 has written.
  const std::string next = "xor.b32 %r2, %r2, 16; mov.u32 %r8, s; add.u32 %r8, %r8, %r2;\n" + load + "[%r8];";
  const DeviceArray<u32> in(128, 0);
  DeviceArray<u32> out(128, 0);
  auto race_of = [&](const std::string& body) {
    run_body(body, out.data, in.data, {{}, {32}});
    return std::exchange(races(), {});
  };
  CHECK(race_of(fill + warp_barrier + next).empty());
  const auto found = race_of(fill + next);
  REQUIRE(found.size() == 1);
  CHECK(mentions(found[0], "data race: shared load of 16 bytes"));
}

TEST_CASE("mma: small integers are exact on every device") {
  std::mt19937 random(2);
  std::uniform_int_distribution<int> integer(-100, 100);
  for (const int capability : {80, 90}) {
    const ComputeCapability device(capability);
    for (const int depth : {8, 16}) {
      CAPTURE(capability);
      CAPTURE(depth);
      Matrix a{16, depth}, b{depth, 8}, c{16, 8};
      for (Matrix* m : {&a, &b, &c})
        for (double& x : m->numbers) x = integer(random);
      Matrix d = Mma{depth}(a, b, c);
      for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
          double expected = c.at(row, column);
          for (int k = 0; k < depth; ++k) expected += a.at(row, k) * b.at(k, column);
          CHECK(d.at(row, column) == expected);
        }
      }
    }
  }
}

TEST_CASE("mma: reals match the bits that the device keeps") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const int capability : {80, 90}) {
    const ComputeCapability device(capability);
    Matrix a{16, 16}, b{16, 8}, c{16, 8};
    for (Matrix* m : {&a, &b})
      for (double& x : m->numbers) x = BFloat::rounded(normal(random)).value();
    Matrix d = Mma{16}(a, b, c);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double expected = 0, magnitude = 0;
        for (int k = 0; k < 16; ++k) {
          expected += a.at(row, k) * b.at(k, column);
          magnitude += std::fabs(a.at(row, k) * b.at(k, column));
        }
        // The error of an instruction that adds 16 products is at most about 2^-23 of the sum of their magnitudes.
        CHECK(std::fabs(d.at(row, column) - expected) <= std::ldexp(magnitude, -23));
      }
    }
  }
}

TEST_CASE("mma: adds 8 or 16 products at once, by device") {
  for (const int capability : {80, 90}) {
    const ComputeCapability device(capability);
    Matrix a{16, 16}, b{16, 8}, c{16, 8};
    a.at(9, 0) = a.at(9, 8) = std::ldexp(1.0, -24);
    b.at(0, 5) = b.at(8, 5) = c.at(9, 5) = 1;
    CHECK(Mma{16}(a, b, c).at(9, 5) == (capability >= 90 ? 1 + std::ldexp(1.0, -23) : 1));
  }
}

TEST_CASE("ldmatrix and mma: fault unless all lanes take part") {
  const std::string load = fill + warp_barrier + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r1];\n";
  const std::string some = "setp.lt.u32 %p1, %r0, 20; ";
  CHECK(fault(mma) == "");
  const std::string exited =
      "the instruction needs all 32 lanes of its warp, and 12 of them have exited or do not exist: ";
  CHECK(mentions(fault(mma, 20), exited + "mma.sync"));
  CHECK(mentions(fault(load, 20), "and 12 of them have exited or do not exist: ldmatrix.sync"));
  CHECK(mentions(fault(some + "@%p1 " + mma), exited + "mma.sync"));
  CHECK(mentions(fault(some + "@!%p1 exit;\n" + mma), exited + "mma.sync"));
  CHECK(mentions(fault(some + "@%p1 " + mma + "bar.sync 0;"),
                 "deadlock: of 32 threads 12 wait at a barrier and 20 in a warp for lanes that do not come"));
  CHECK(mentions(fault(some + "@%p1 bra A;\n" + mma + "bra B;\nA: " + mma + "B:"),
                 "mismatch: lanes of mask 0xffffffff wait in mma.sync"));
  // Lanes that have taken a different branch meet again at the instruction.
  CHECK(fault(some + "@%p1 bra A;\nB: " + mma + "bra C;\nA: mov.u32 %r1, 1; bra B;\nC:") == "");
}
