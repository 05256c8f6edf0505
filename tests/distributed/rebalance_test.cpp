#include "gatefold/distributed/rebalance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/placement.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;
using dist::Placement;

namespace {

constexpr Index dim = 4, experts = 6, items = 60, layers = 2, all_shards = 3;

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

TEST_CASE("rebalance (1): experts move to even loads; imbalance is reported") {
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, all_shards, [&](auto& shard) {
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
        std::vector<double> before(all_shards), after(all_shards);  // slots of each shard
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
    // With a planner that the program supplies, experts move in the first call and stay in the second.
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
      dist::run(world, all_shards,
                [&](auto& shard) {
                  Cpu::Context ctx(1);
                  auto trainer = trainer_on(shard, ctx);
                  dist::ExpertLoads loads;
                  dist::rebalance(shard, trainer, loads);
                }),
      "rebalance: loads: expected loads of 2 ExpertParallel (call ExpertLoads.add after each step), got 0",
      ArgumentError);
}

TEST_CASE("rebalance: invalid placements of the planner throw; empty means even") {
  struct Says {
    Placement placement;
    Placement place(const std::vector<Index>&, Index, const Placement&) const { return placement; }
  };
  const auto run = [](const Placement& placement) {
    dist::Alone world;
    dist::run(world, all_shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx);
      dist::ExpertLoads loads;
      step(shard, trainer, 1);
      loads.add(shard, trainer);
      dist::rebalance(shard, trainer, loads, Says{placement});
      for (const Placement& now : dist::placements(trainer))
        if (!(now == Placement::even(experts, all_shards))) throw std::runtime_error("not even");
    });
  };
  CHECK_THROWS_WITH_AS(run({{0, 1, 2, 3, 0, 0}}), "rebalance: placement[3]: expected a shard in [0, 3), got 3",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(run({{0, 1}}), "rebalance: placement: expected a shard for each of 6 experts, got 2",
                       ArgumentError);
  run({});
}

using dist::LongestFirst;
using Numbers = std::vector<Index>;

namespace {

/// Tries all placements of few experts and returns the least load of the busiest shard.
Index best_of_all(const Numbers& loads, Index shards, Index room) {
  Placement p{Numbers(loads.size())};
  Index best = std::accumulate(loads.begin(), loads.end(), Index(0));
  while (true) {
    Index most = 0;
    bool fits = true;
    for (Index j = 0; j < shards; ++j) {
      fits = fits && p.count(j) <= room;
      Index load = 0;
      for (std::size_t e = 0; e < loads.size(); ++e) load += p.shard_of[e] == j ? loads[e] : 0;
      most = std::max(most, load);
    }
    if (fits) best = std::min(best, most);
    std::size_t e = 0;
    while (e < loads.size() && ++p.shard_of[e] == shards) p.shard_of[e++] = 0;
    if (e == loads.size()) return best;
  }
}
Index busiest(const Numbers& loads, const Placement& p, Index shards) {
  const Numbers of = dist::loads_of_shards(loads, p, shards);
  return *std::max_element(of.begin(), of.end());
}

}  // namespace

TEST_CASE("LongestFirst: longest expert first, to the least loaded shard") {
  // The loads grow as 9 | 8, 9 | 8 + 5, 9 + 4 | 13, 13 + 4 | 13, and 1 goes to the shard with room.
  CHECK(LongestFirst{.gain = 0}.place({4, 9, 5, 8, 4, 1}, 2, {{0, 0, 0, 0, 0, 0}}) == Placement{{0, 0, 1, 1, 0, 1}});
  // Ties go to the lower expert, then to the shard with fewer experts, then to the lower shard.
  CHECK(LongestFirst{.gain = 0}.place({3, 3, 3, 3, 0, 0}, 2, {{1, 1, 1, 1, 1, 1}}).count(0) == 3);
}

TEST_CASE("LongestFirst: without limit, maximum load is at most 4/3 optimal") {
  std::mt19937 generator(1);
  for (int i = 0; i < 60; ++i) {
    const Index shards = 2 + i % 2, experts = 5 + i % 3;
    Numbers loads(static_cast<std::size_t>(experts));
    for (Index& l : loads) l = static_cast<Index>(generator() % (i % 4 == 0 ? 3 : 100));
    Placement now{Numbers(loads.size(), 0)};
    const Placement found = LongestFirst{.most = experts, .gain = 0}.place(loads, shards, now);
    const Index best = best_of_all(loads, shards, experts);
    CAPTURE(loads);
    CHECK(3 * busiest(loads, found, shards) <= 4 * best);
    // With limited room the result is at least as good as the old placement, and no shard has more experts than
    // allowed.
    const Placement even = Placement::even(experts, shards), kept = LongestFirst{}.place(loads, shards, even);
    CHECK(busiest(loads, kept, shards) <= busiest(loads, even, shards));
    for (Index j = 0; j < shards; ++j) CHECK(kept.count(j) <= (experts + shards - 1) / shards);
  }
}

TEST_CASE("LongestFirst: keeps experts if the gain is small") {
  const Placement now{{1, 1, 0, 0}};
  CHECK(LongestFirst{}.place({5, 5, 5, 5}, 2, now) == now);                 // even already
  CHECK(LongestFirst{}.place({0, 0, 0, 0}, 2, now) == now);                 // no loads are known
  CHECK(LongestFirst{.gain = 0.1}.place({54, 50, 50, 46}, 2, now) == now);  // busiest shard: 104 to 100, a gain of 4 %
  CHECK(LongestFirst{.gain = 0.03}.place({54, 50, 50, 46}, 2, now) != now);
  // The parts {0, 1} and {2, 3} are even. The first part takes shard 1, where both of its experts are, so one expert
  // moves.
  CHECK(LongestFirst{}.place({9, 1, 8, 2}, 2, {{1, 1, 1, 0}}) == Placement{{1, 1, 0, 0}});
}

TEST_CASE("LongestFirst: isolates a hot expert, allows more shards than experts") {
  const Numbers loads{100, 1, 1, 1};
  const Placement p = LongestFirst{.most = 3, .gain = 0}.place(loads, 2, {{0, 0, 1, 1}});
  CHECK(p.count(p.shard_of[0]) == 1);
  const Placement wide = LongestFirst{}.place({3, 4}, 5, {{0, 0}});
  CHECK(wide.shard_of[0] != wide.shard_of[1]);
}

TEST_CASE("LongestFirst: throws for invalid options") {
  CHECK_THROWS_WITH_AS((LongestFirst{.most = 1}.place({1, 2, 3}, 2, {{0, 0, 1}})),
                       "LongestFirst: most: expected 0 or at least 2 (3 experts on 2 shards), got 1", ArgumentError);
  CHECK_THROWS_WITH_AS((LongestFirst{.gain = -1}.place({1, 2, 3}, 2, {{0, 0, 1}})),
                       "LongestFirst: gain: expected at least 0, got -1", ArgumentError);
}

namespace {

constexpr Index width = 4, five = 5, rows_of_all = 30;
const Mixture mixture{SoftmaxTopK{.scores = {.experts = five}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = width, .hidden_dim = 3}};
auto trainer_with(auto& shard, Cpu::Context& ctx, const dist::Placement& placement) {
  return Trainer{ctx, Stack{Residual{update::Plain{}, dist::ExpertParallel{mixture, &shard, placement}}, 2},
                 dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{.lr = 0.1}, &shard},
                 Seed{3}};
}

}  // namespace

TEST_CASE("ExpertLoads: loads equal the picks of all shards' plans") {
  for (const dist::Placement& placement : {dist::Placement{}, dist::Placement{{2, 0, 0, 2, 0}}}) {
    dist::Alone world;
    std::mutex mutex;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_with(shard, ctx, placement);
      dist::ExpertLoads loads;
      std::vector<Numbers> expected(2, Numbers(five));
      const auto mine = shard.part_of(rows_of_all);
      for (std::uint64_t i = 0; i < 3; ++i) {
        const auto x = uniform_tensor<float>(ctx, Seed{i}, 1, rows_of_all, width);
        trainer.step(x.view().rows(mine.first, mine.count), x.view().rows(mine.first, mine.count));
        loads.add(shard, trainer);
        std::size_t layer = 0;
        for_each_mixture(trainer.saved, [&](const auto& saved) {  // its plan holds the items of all shards
          for (Index p = 0; p < saved.plan.expert.size(); ++p)
            ++expected[layer][static_cast<std::size_t>(saved.plan.expert(p))];
          ++layer;
        });
      }
      const auto found = loads.of_all(shard);
      const std::lock_guard lock(mutex);
      CHECK(found == expected);
      CHECK(loads.slots.size() == 2);
      loads.clear();
      CHECK(loads.slots.empty());
    });
  }
}

TEST_CASE("ExpertLoads: counts a step once, empty batches add zero") {
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_with(shard, ctx, {});
    dist::ExpertLoads loads;
    const auto step = [&](Index n) {
      const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, n, width);
      const auto mine = shard.part_of(n);
      trainer.step(x.view().rows(mine.first, mine.count), x.view().rows(mine.first, mine.count));
      loads.add(shard, trainer);
      Index sum = 0;
      for (const Numbers& counts : loads.of_all(shard))
        for (const Index n_of_expert : counts) sum += n_of_expert;
      return sum;
    };
    const Index picks = 2 * 2;  // picks of an item in two layers
    const Index before_any = step(0), one = step(10), empty = step(0), two = step(7);
    trainer.params = init_params<float, Cpu>(trainer.layer(), ctx, Seed{4});
    loads.add(shard, trainer);
    const auto dealt_anew = loads.of_all(shard);
    const std::lock_guard lock(mutex);
    CHECK(before_any == 0);
    CHECK(one == 10 * picks);
    CHECK(empty == 10 * picks);
    CHECK(two == 17 * picks);
    CHECK(dealt_anew.size() == 2);
  });
}
