// Tests launches: which blocks run, in what order, and what is counted.
#include "cuda_emulator/launch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;
using u32 = std::uint32_t;

namespace {

/// The numbers of the blocks in the order in which they ran.
std::vector<u32> order_of(u32 blocks) {
  DeviceArray<u32> out(blocks + 1, ~0u);
  out[0] = 0;
  run_body(
      "mov.u32 %r1, %ctaid.x; atom.global.add.u32 %r2, [%d0], 1; mul.wide.u32 %d3, %r2, 4; add.s64 %d3, %d3, %d0;\n"
      "st.global.u32 [%d3+4], %r1;",
      out.data, nullptr, {{blocks}, {1}});
  std::vector<u32> order(out.data + 1, out.data + 1 + out[0]);
  return order;
}

}  // namespace

TEST_CASE("launch: blocks run in ascending or seeded order") {
  std::vector<u32> ascending(600);
  std::iota(ascending.begin(), ascending.end(), 0u);
  CHECK(order_of(600) == ascending);
  options().block_order = 7;
  std::vector<u32> permuted = order_of(600);
  CHECK(permuted != ascending);
  CHECK(permuted == order_of(600));
  options().block_order = 8;
  CHECK(permuted != order_of(600));
  std::sort(permuted.begin(), permuted.end());
  CHECK(permuted == ascending);
}

TEST_CASE("launch: option last_blocks runs only the last blocks") {
  options().last_blocks = 2;
  CHECK(order_of(5) == std::vector<u32>{3, 4});
  CHECK(order_of(1) == std::vector<u32>{0});
}

TEST_CASE("launch: in three dimensions x runs fastest") {
  options().last_blocks = 1;
  DeviceArray<u32> out(3, 0);
  run_body(
      "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; st.global.u32 [%d0], %r1;\n"
      "st.global.u32 [%d0+4], %r2; st.global.u32 [%d0+8], %r3;",
      out.data, nullptr, {{3, 4, 5}, {1}});
  CHECK(out.values() == std::vector<u32>{2, 3, 4});
}

TEST_CASE("launch: many blocks may wait at once") {
  // All blocks except the last wait for the last.
  DeviceArray<u32> out(2, 0);
  run_body(
      "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 299; @%p1 bra SET;\n"
      "SPIN: nanosleep.u32 1; ld.acquire.gpu.global.u32 %r2, [%d0]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; bra END;\n"
      "SET: st.release.gpu.global.u32 [%d0], 1;\nEND: red.global.add.u32 [%d0+4], 1;",
      out.data, nullptr, {{300}, {1}});
  CHECK(out[1] == 300);
}

TEST_CASE("counters: count launches, blocks, instructions and bytes by kernel") {
  const Counters before = counters();
  counters_by_kernel().clear();
  DeviceArray<u32> out(65, 1);
  // Each thread executes five instructions before the body, two of the body and the return. Two threads of a block
  // execute the guarded instruction.
  run_body("setp.lt.u32 %p1, %r0, 2; ld.global.v2.u32 {%r1, %r2}, [%d2];\n@%p1 red.global.add.u32 [%d0+256], %r1;",
           out.data, nullptr, {{3}, {32}});
  const Counters& after = counters();
  CHECK(after.launches - before.launches == 1);
  CHECK(after.blocks - before.blocks == 3);
  CHECK(after.instructions - before.instructions == 3 * (8 * 32 + 2));
  CHECK(after.global_bytes_loaded - before.global_bytes_loaded == 3 * 32 * 8);
  CHECK(after.global_bytes_stored - before.global_bytes_stored == 3 * 2 * 4);
  CHECK(counters_by_kernel().at("k").blocks == 3);
}

TEST_CASE("counters and faults: use the demangled kernel name") {
  const std::string text = kernel_text("trap;");
  const std::size_t name = text.find(" k(");
  const auto module = read(text.substr(0, name) + " _Z3oobPfi(" + text.substr(name + 3));
  counters_by_kernel().clear();
  const std::string fault = fault_of([&] { launch(*module->find("_Z3oobPfi"), {{}, {}, 0, std::vector<char>(16)}); });
  CHECK(mentions(fault, "in kernel oob(float*, int), block (0,0,0), thread (0,0,0)"));
  CHECK(counters_by_kernel().at("oob(float*, int)").launches == 1);
}

TEST_CASE("launch: faults if parameter bytes are missing") {
  const auto module = read(kernel_text(""));
  CHECK(fault_of([&] {
          launch(*module->find("k"), {{}, {}, 0, std::vector<char>(8)});
        }) == "launch of k: expected 16 bytes of parameters, got 8");
}
