#include "gatefold/distributed/zero_optimizer.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "gatefold/distributed/checkpoint.hpp"
#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/move_experts.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

constexpr Index items = 18, words = 11, dim = 5, classes = 3;

/// A table, a router, a norm, experts and an output layer; their parameters form two groups.
auto model_of(auto& shard) {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}};
  return Chain{Embedding{.vocabulary = words, .model_dim = dim},
               Stack{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, dist::ExpertParallel{mixture, &shard}}}, 2},
               Linear{.model_dim = dim, .output_dim = classes}};
}
const InGroups groups{is_weight, optim::AdamW{.lr = 0.02, .decay = 0.1}, optim::AdamW{.lr = 0.01}};

/// Trains in two halves and returns the bytes of the last checkpoint. The second half begins from the checkpoint of the
/// first. `held` gets the number of state values that each shard holds.
template <class MakeOptimizer>
std::string trained(Index shards, const MakeOptimizer& optimizer_of, const std::filesystem::path& folder,
                    std::vector<Index>* held = nullptr, bool moves = false, const NotTrained& except = {}) {
  for (int part = 0; part < 2; ++part) {
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx,     model_of(shard), dist::LossOfShards{CrossEntropy{}, &shard}, optimizer_of(shard),
                      Seed{1}, except};
      if (part == 1) dist::load_checkpoint(shard, folder / "half", trainer);
      const auto mine = shard.part_of(items);
      while (trainer.state.step < 3 * (part + 1)) {
        std::vector<Index> x, y;
        for (Index n = 0; n < items; ++n) {
          x.push_back((n * n + 3 * trainer.state.step) % (words - 3));  // some rows of the table are never touched
          y.push_back((n + trainer.state.step) % classes);
        }
        trainer.step(View<const Index, 1, Cpu>(x).rows(mine.first, mine.count),
                     View<const Index, 1, Cpu>(y).rows(mine.first, mine.count));
        if (moves) {
          const Index to = trainer.state.step % shards;
          dist::move_experts(shard, trainer, {{{to, 0, to, 0}}, {{0, to, to, to}}});
        }
      }
      dist::save_checkpoint(shard, folder / (part == 0 ? "half" : "end"), trainer);
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      if (held) held->push_back(count_values(trainer.state));
    });
  }
  return support::read_bytes(folder / "end");
}

}  // namespace

TEST_CASE("Zero: throws without a shard") {
  Cpu::Context ctx(1);
  dist::Shard<dist::Alone>* const none = nullptr;
  const auto params = init_params<float, Cpu>(OneExpert{Linear{.model_dim = 2}}, ctx, Seed{1});
  CHECK_THROWS_WITH_AS((dist::Zero{optim::AdamW{}, none}.begin(ctx, params)),
                       "Zero: shard: expected the address of a shard of dist::run, got null", ArgumentError);
  CHECK_THROWS_WITH_AS((dist::DataParallel{optim::AdamW{}, none}.begin(ctx, params)),
                       "DataParallel: shard: expected the address of a shard of dist::run, got null", ArgumentError);
}

TEST_CASE("Zero: gives the same checkpoints as an undivided state") {
  const support::TempDirectory folder;
  const auto check = [&](const auto& base, const auto& around, const NotTrained& except = {}) {
    for (Index shards : {1, 2, 3, 5}) {
      CAPTURE(shards);
      std::vector<Index> all, some;
      const std::string expected = trained(
          shards,
          [&](auto& shard) {
            return dist::DataParallel{around(base), &shard};
          },
          folder.path, &all, false, except);
      const std::string found = trained(
          shards,
          [&](auto& shard) {
            return dist::DataParallel{around(dist::Zero{base, &shard}), &shard};
          },
          folder.path, &some, true, except);  // while experts move
      CHECK(found.size() > 1000);
      CHECK(found == expected);
      Index of_all = 0, of_some = 0;
      for (const Index n : all) of_all += n;
      for (const Index n : some) of_some += n;
      if (shards > 1) CHECK(of_some < of_all);
      if (shards == 1) CHECK(of_some == of_all);
    }
  };
  check(optim::AdamW{.lr = 0.02, .decay = 0.1}, [](const auto& o) { return o; });
  check(optim::Sgd{.lr = 0.1, .momentum = 0.9}, [](const auto& o) { return optim::Clipped{o, 0.05}; });
  check(optim::AdamW{.lr = 0.02}, [](const auto& o) { return optim::Averaged{o, 0.9}; });
  check(groups, [](const auto& o) {
    return optim::Scheduled{optim::Clipped{o, 0.3}, optim::WarmupCosine{.warmup = 2, .total = 9}};
  });
  // Cases in which some parameters are not trained.
  for (const char* pattern : {"layers.1.layers.*.branch.branch.expert", "layers.1.layers.0", "layers.0", "layers.2.*"})
    check(
        groups,
        [](const auto& o) {
          return optim::Clipped{o, 0.3};
        },
        pattern);
}

TEST_CASE("NotTrained on shards: steps equal steps with learning rate 0") {
  const support::TempDirectory folder;
  const auto steps_of = [&](const auto& optimizer, const NotTrained& except) {
    std::vector<double> all;
    dist::Alone world;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{
          ctx,     model_of(shard), dist::LossOfShards{CrossEntropy{}, &shard}, dist::DataParallel{optimizer, &shard},
          Seed{1}, except};
      const std::vector<Index> x{0, 1, 2, 3, 4, 5}, y{0, 1, 2, 0, 1, 2};
      for (int t = 0; t < 3; ++t)
        trainer.step(View<const Index, 1, Cpu>(x).rows(2 * shard.index(), 2),
                     View<const Index, 1, Cpu>(y).rows(2 * shard.index(), 2));
      const auto add = [&](const Name&, const auto& t) {
        for (Index i = 0; i < t.size(); ++i) all.push_back(static_cast<double>(t.data()[i]));
      };
      if (shard.index() == 1) for_each_tensor(add, trainer.params);
    });
    return all;
  };
  const optim::AdamW adam{.lr = 0.02};
  constexpr auto is_expert = [](const Name& name) { return name.str().find(".expert.") != std::string::npos; };
  const auto apart = steps_of(InGroups{is_expert, optim::Sgd{.lr = 0}, adam}, {});
  CHECK(apart.size() > 100);
  CHECK(steps_of(adam, NotTrained{is_expert}) == apart);
  CHECK_FALSE(steps_of(adam, {}) == apart);
}
