#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/policies.hpp"

/// A training on shards. The program is the same on every backend.
namespace gatefold::test {

/// The loss of each step, and all parameters at the end.
struct ShardRun {
  std::vector<double> losses{}, params{};
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

inline constexpr Index run_dim = 6, run_experts = 5;
/// Numbers of items of the batches. With the smallest batches, some shards have no items.
inline constexpr Index run_items[] = {11, 1, 7, 2};

inline auto run_mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = run_experts}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = run_dim, .hidden_dim = 5}};
}
auto run_model(const auto& branch) { return Stack{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0}, branch}, 2}; }

/// Returns the trainer of a shard. The context can belong to any backend.
template <class C>
auto run_trainer(auto& shard, C& ctx, Seed seed = Seed{5}) {
  return Trainer{
      ctx,
      run_model(dist::ExpertParallel{run_mixture(), &shard}),
      dist::LossOfShards{MeanSquaredError{}, &shard},
      dist::DataParallel{optim::Clipped{dist::Zero{optim::Sgd{.lr = 0.1, .momentum = 0.9}, &shard}, 0.5}, &shard},
      seed,
      Element<double>{}};
}
/// Runs the next training step of the trainer. Returns the loss.
double run_step(auto& shard, auto& ctx, auto& trainer) {
  const auto number = static_cast<std::uint64_t>(trainer.state.step);
  const Index items = run_items[number % std::size(run_items)];
  const auto here = ctx.here();
  const auto x = uniform_tensor<double>(ctx, Seed{100 + number}, 1, items, run_dim),
             target = uniform_tensor<double>(ctx, Seed{200 + number}, 1, items, run_dim);
  const auto mine = shard.part_of(items);
  return trainer.step(x.view().rows(mine.first, mine.count), target.view().rows(mine.first, mine.count));
}

/// Runs the training on the shards of this rank. On rank 0, returns the losses and final parameters of shard 0.
/// @param begin  function that is called with the number of the shard, in the thread of each shard
/// @param moves  true if experts move between steps
template <class B, class W, class F>
ShardRun run_on_shards(W& world, Index shards, const F& begin, bool moves) {
  ShardRun found;
  dist::run(world, shards, [&](auto& shard) {
    begin(shard.index());
    typename B::Context ctx;
    auto trainer = run_trainer(shard, ctx);
    dist::ExpertLoads loads;
    for (std::size_t i = 0; i < std::size(run_items); ++i) {
      const double loss = run_step(shard, ctx, trainer);
      if (shard.index() == 0) found.losses.push_back(loss);
      loads.add(shard, trainer);
      if (moves) dist::rebalance(shard, trainer, loads, dist::LongestFirst{.most = run_experts, .gain = 0});
    }
    auto whole = init_params<double, B>(run_model(run_mixture()), ctx, Seed{9});
    dist::copy_whole(shard, ctx, trainer.params, whole);
    if (shard.index() > 0) return;
    for_each_tensor(
        [&](const Name&, const auto& t) {
          const std::size_t before = found.params.size();
          found.params.resize(before + static_cast<std::size_t>(t.size()));
          B::to_host(ctx, t.size(), t.data(), found.params.data() + before);
        },
        whole);
  });
  return found;
}

/// Returns the run on the CPU backend. cuda/shards_on_cpu.cpp defines this function, because nvcc does not read the
/// headers of this backend.
ShardRun shard_run_on_cpu(Index shards);

}  // namespace gatefold::test
