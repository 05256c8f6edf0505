#include "gatefold/distributed/expert_loads.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <vector>

#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;
using Numbers = std::vector<Index>;

namespace {

constexpr Index dim = 4, experts = 5, items = 30;
const Mixture mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};
auto trainer_on(auto& shard, Cpu::Context& ctx, const dist::Placement& placement) {
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
      auto trainer = trainer_on(shard, ctx, placement);
      dist::ExpertLoads loads;
      std::vector<Numbers> expected(2, Numbers(experts));
      const auto mine = shard.part_of(items);
      for (std::uint64_t i = 0; i < 3; ++i) {
        const auto x = uniform_tensor<float>(ctx, Seed{i}, 1, items, dim);
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
    auto trainer = trainer_on(shard, ctx, {});
    dist::ExpertLoads loads;
    const auto step = [&](Index n) {
      const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, n, dim);
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
