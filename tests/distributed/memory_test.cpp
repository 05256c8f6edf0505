#include "gatefold/distributed/memory.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <type_traits>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"
#include "support/late_memory.hpp"
#include "support/processes.hpp"

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

TEST_CASE("rows: copies rows along the first extent, also zero rows") {
  Tensor<double, 3, Cpu> all(4, 2, 3), part;
  for (Index i = 0; i < all.size(); ++i) all.data()[i] = static_cast<double>(i);
  CHECK(dist::rows::width(all) == 6);
  dist::rows::resize(part, all, 2);
  CHECK(part.extent(0) == 2);
  CHECK(part.extent(1) == 2);
  CHECK(part.extent(2) == 3);
  dist::rows::copy(dist::HostMemory{}, std::as_const(all).data(), {1, 2}, 6, part.data());
  for (Index i = 0; i < part.size(); ++i) CHECK(part.data()[i] == static_cast<double>(6 + i));
  CHECK(dist::rows::width(Tensor<double, 1, Cpu>(5)) == 1);
  double* volatile nowhere = nullptr;  // volatile: compilers warn about copies of no values to a known null
  dist::rows::copy<dist::HostMemory, double>({}, nowhere, {0, 0}, 6, nowhere);
}

namespace {

/// Memory whose copies may fail when they finish.
struct Failing : test::LateMemory {
  bool* fails;  // whether the next copy fails
  void finish() const {
    if (*fails && !asked->empty()) {
      *fails = false;
      throw DeviceError("a device fails");
    }
    LateMemory::finish();
  }
};

/// Returns how many values arrive wrong if shards of `processes` processes exchange values that are ready late.
int wrong_in(int processes, Index shards) {
  support::Processes all(processes);
  std::atomic<int> wrong = 0;
  all.run([&](auto& world) { wrong += test::wrong_of_late(world, shards); });
  return wrong;
}

}  // namespace

TEST_CASE("Staged: device data arrive in this and other processes") {
  for (const int processes : {1, 2, 3})
    for (const Index shards : {3, 4}) {
      CAPTURE(processes);
      CAPTURE(shards);
      CHECK(wrong_in(processes, shards) == 0);
    }
}

TEST_CASE("Staged: a failing device read ends all shards") {
  dist::Alone world;
  CHECK_THROWS_WITH_AS(dist::run(world, 3,
                                 [&](auto& shard) {
                                   std::vector<std::function<void()>> asked;
                                   bool fails = shard.index() == 1;
                                   const Failing memory{{&asked}, &fails};
                                   std::vector<Index> give(1, shard.index()), take(3);
                                   const std::vector<Index> counts{1, 1, 1};
                                   shard.all_gather(memory, give.data(), counts, take.data());
                                   give = {-1};
                                   CHECK(take == std::vector<Index>{0, 1, 2});
                                   shard.barrier();
                                 }),
                       "a device fails", DeviceError);
}
