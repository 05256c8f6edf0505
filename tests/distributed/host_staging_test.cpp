#include "gatefold/distributed/host_staging.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/distributed/shards.hpp"
#include "support/late_memory.hpp"
#include "support/processes.hpp"

using namespace gatefold;

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
