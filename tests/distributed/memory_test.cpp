#include "gatefold/distributed/memory.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

// The memory of a device is tested in tests/cuda/shards_test.cu.
TEST_CASE("HostMemory: reads and writes in place") {
  Cpu::Context ctx(1);
  const auto memory = dist::memory_of(ctx);
  static_assert(std::is_same_v<decltype(memory), const dist::HostMemory>);
  std::vector<double> from{1, 2, 3}, to{10, 20, 30};
  CHECK(memory.read(from.data(), 3).data() == from.data());
  CHECK(memory.room(to.data(), 3).data() == to.data());
  memory.add(from.data(), 2, to.data());
  CHECK(to == std::vector<double>{11, 22, 30});
  memory.copy(from.data() + 1, 2, to.data());
  CHECK(to == std::vector<double>{2, 3, 30});
  memory.copy<double>(nullptr, 0, nullptr);
}
