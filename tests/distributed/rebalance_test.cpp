#include "gatefold/distributed/rebalance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;
using dist::Placement;

namespace {

constexpr Index dim = 4, experts = 6, items = 60, layers = 2, shards = 3;

auto trainer_on(auto& shard, Cpu::Context& ctx) {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};
  const Placement begin{{0, 0, 0, 0, 0, 2}};
  return Trainer{ctx, Stack{Residual{update::Plain{}, dist::ExpertParallel{mixture, &shard, begin}}, layers},
                 dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{.lr = 0.1}, &shard},
                 Seed{3}};
}
void step(auto& shard, auto& trainer, std::uint64_t number) {
  const auto x = uniform_tensor<float>(trainer.context(), Seed{number}, 1, items, dim);
  const auto mine = shard.part_of(items);
  trainer.step(x.view().rows(mine.first, mine.count), x.view().rows(mine.first, mine.count));
}
/// A planner that puts all experts on one shard.
struct AllOn {
  Index shard;
  Placement place(const std::vector<Index>& loads, Index, const Placement&) const {
    return {std::vector<Index>(loads.size(), shard)};
  }
};

}  // namespace

TEST_CASE("(1): imbalance before and after, experts move to even loads") {
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx);
    const auto begin = dist::placements(trainer);
    dist::ExpertLoads loads;
    for (std::uint64_t i = 0; i < 2; ++i) {
      step(shard, trainer, i);
      loads.add(shard, trainer);
    }
    const auto measured = loads.of_all(shard);
    const auto found = dist::rebalance(shard, trainer, loads);
    const auto now = dist::placements(trainer);
    {
      const std::lock_guard lock(mutex);
      Index moved = 0;
      for (std::size_t i = 0; i < layers; ++i) {
        std::vector<double> before(shards), after(shards);  // slots of each shard
        for (std::size_t e = 0; e < experts; ++e) {
          before[static_cast<std::size_t>(begin[i].shard_of[e])] += static_cast<double>(measured[i][e]);
          after[static_cast<std::size_t>(now[i].shard_of[e])] += static_cast<double>(measured[i][e]);
          moved += begin[i].shard_of[e] != now[i].shard_of[e];
        }
        constexpr double mean = 2 * 2 * items / 3.0;  // steps, picks
        // The tolerance 1e-12 is for a product and a quotient of whole numbers.
        CHECK(found.before[i] ==
              doctest::Approx(*std::max_element(before.begin(), before.end()) / mean).epsilon(1e-12));
        CHECK(found.after[i] == doctest::Approx(*std::max_element(after.begin(), after.end()) / mean).epsilon(1e-12));
        CHECK(found.before[i] > 2);
        CHECK(found.after[i] < 2);
      }
      CHECK(found.moved == moved);
      CHECK(loads.slots.empty());
    }
    // With a planner of the program, experts move once and stay then.
    for (const Index moves : {1, 0}) {
      step(shard, trainer, 7);
      loads.add(shard, trainer);
      const auto again = dist::rebalance(shard, trainer, loads, AllOn{1});
      const std::lock_guard lock(mutex);
      CHECK((again.moved > 0) == (moves == 1));
      CHECK(again.after == std::vector<double>(layers, 3));
    }
  });
}

TEST_CASE("rebalance: throws without measured loads") {
  dist::Alone world;
  CHECK_THROWS_WITH_AS(
      dist::run(world, shards,
                [&](auto& shard) {
                  Cpu::Context ctx(1);
                  auto trainer = trainer_on(shard, ctx);
                  dist::ExpertLoads loads;
                  dist::rebalance(shard, trainer, loads);
                }),
      "rebalance: loads: expected loads of 2 ExpertParallel (call ExpertLoads.add after each step), got 0",
      ArgumentError);
}

TEST_CASE("rebalance: checks the planner's placement, empty means even") {
  struct Says {
    Placement placement;
    Placement place(const std::vector<Index>&, Index, const Placement&) const { return placement; }
  };
  const auto run = [](const Placement& placement) {
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::ExpertLoads loads;
      step(shard, trainer, 1);
      loads.add(shard, trainer);
      dist::rebalance(shard, trainer, loads, Says{placement});
      for (const Placement& now : dist::placements(trainer))
        if (!(now == Placement::even(experts, shards))) throw std::runtime_error("not even");
    });
  };
  CHECK_THROWS_WITH_AS(run({{0, 1, 2, 3, 0, 0}}), "rebalance: placement[3]: expected a shard in [0, 3), got 3",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(run({{0, 1}}), "rebalance: placement: expected a shard for each of 6 experts, got 2",
                       ArgumentError);
  run({});
}
