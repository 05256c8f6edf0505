#include "gatefold/distributed/tensors_on_all_shards.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

const Mixture mixture{SoftmaxTopK{.scores = {.experts = 5}}, Mlp<Gelu>{.model_dim = 3, .hidden_dim = 4}};
auto model_of(const auto& branch) { return Stack{Residual{update::Plain{}, branch}, 2}; }

std::vector<double> values(const auto& pack) {
  std::vector<double> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, pack);
  return all;
}

}  // namespace

TEST_CASE("copy_whole: gathers the same parameters as one process has") {
  Cpu::Context one(1);
  const auto expected = values(init_params<float, Cpu>(model_of(mixture), one, Seed{6}));
  struct Case {
    Index shards;
    dist::Placement placement;
  };
  for (const Case& c : {Case{1, {}}, Case{2, {}}, Case{5, {}}, Case{7, {}}, Case{3, {{2, 0, 2, 2, 0}}}}) {
    dist::Alone world;
    std::vector<double> found;
    dist::run(world, c.shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto sharded =
          init_params<float, Cpu>(model_of(dist::ExpertParallel{mixture, &shard, c.placement}), ctx, Seed{6});
      auto whole = init_params<float, Cpu>(model_of(mixture), ctx, Seed{9});
      dist::copy_whole(shard, ctx, sharded, whole);
      if (shard.index() == 0) found = values(whole);
    });
    CAPTURE(c.shards);
    CHECK(found == expected);
  }
}

TEST_CASE("copy_whole: throws for a pack of another shape") {
  dist::Alone world;
  CHECK_THROWS_WITH_AS(
      dist::run(
          world, 2,
          [&](auto& shard) {
            Cpu::Context ctx(1);
            const auto sharded = init_params<float, Cpu>(model_of(dist::ExpertParallel{mixture, &shard}), ctx, Seed{6});
            auto other = Linear{.model_dim = 3}.init<float, Cpu>(ctx, 1, Seed{9});
            dist::copy_whole(shard, ctx, sharded, other);
          }),
      "copy_whole: weight: expected 36 bytes, got 60", ArgumentError);
}
