#include "gatefold/distributed/sync_norm_of_gradients.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.hpp"
#include "support/larger.hpp"

using namespace gatefold;
using dist::Placement;

namespace {

constexpr Index experts = 5, dim = 4;
const Mlp<Gelu> expert{.model_dim = dim, .hidden_dim = 3};

/// Two layers of experts, and a tensor with a row for each expert that all shards hold.
template <class ExpertsP>
struct Bank {
  ExpertsP first, second;
  Tensor<double, 2, Cpu> row;  // [E, 2]
  GATEFOLD_PACK(first, second, row)
};
using OfExperts = Params<Mlp<Gelu>, double, Cpu>;
using Whole = Bank<OfExperts>;
using OfShard = Bank<dist::Sharded<OfExperts>>;

Whole random_bank(Cpu::Context& ctx, std::uint64_t seed) {
  Whole bank{expert.init<double, Cpu>(ctx, experts, Seed{1}), expert.init<double, Cpu>(ctx, experts, Seed{1}),
             Tensor<double, 2, Cpu>(experts, 2)};
  const auto fill = [&](const Name&, auto& t) {
    const auto values = uniform_tensor<double>(ctx, Seed{++seed}, 1, 1, t.size());
    std::copy(values.data(), values.data() + t.size(), t.data());
  };
  for_each_tensor(fill, bank);
  return bank;
}
/// The two layers have different placements.
OfShard part_of(Cpu::Context& ctx, Index shard, Index shards, Whole& whole) {
  Placement other{{}};
  for (Index e = 0; e < experts; ++e) other.shard_of.push_back(e * e % shards);
  OfShard part;
  dist::take_experts(ctx, expert, Placement::even(experts, shards), shard, shards, part.first, whole.first);
  dist::take_experts(ctx, expert, other, shard, shards, part.second, whole.second);
  part.row.resize(experts, 2);
  copy(ctx, View<const double, 2, Cpu>(whole.row), part.row.view());
  return part;
}

/// Computes a step in loops.
Whole stepped(Cpu::Context& ctx, const optim::NormalizedGd& gd, std::uint64_t seed) {
  Whole p = random_bank(ctx, 100), g = random_bank(ctx, seed);
  std::vector<double> norm(gd.per_expert ? experts : 1), squares = norm;
  const auto slice_of = [&](const auto& t, Index i) {
    return static_cast<std::size_t>(gd.per_expert ? i / (t.size() / experts) : 0);
  };
  for_each_tensor(
      [&](const Name&, const auto& t) {
        std::vector<double> of_tensor(norm.size());
        for (Index i = 0; i < t.size(); ++i) of_tensor[slice_of(t, i)] += t.data()[i] * t.data()[i];
        for (std::size_t e = 0; e < norm.size(); ++e) {
          norm[e] += std::sqrt(of_tensor[e]);
          squares[e] += of_tensor[e];
        }
      },
      g);
  for (std::size_t e = 0; e < norm.size() && !gd.sum_of_norms; ++e) norm[e] = std::sqrt(squares[e]);
  for_each_tensor(
      [&](const Name&, auto& w, const auto& t) {
        for (Index i = 0; i < t.size(); ++i) w.data()[i] -= gd.lr * t.data()[i] / norm[slice_of(t, i)];
      },
      p, g);
  return p;
}

auto mixture() { return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}}, expert}; }
bool is_expert(const Name& name) { return name.str().find("expert.") != std::string::npos; }
auto model_of(const auto& branch) { return Stack{Residual{update::HeavyBall{}, branch}, 2}; }

/// The parameters after some steps, by tensor.
using Values = std::vector<std::vector<double>>;
Values values_of(const auto& params) {
  Values all;
  for_each_tensor([&](const Name&, const auto& t) { all.emplace_back(t.data(), t.data() + t.size()); }, params);
  return all;
}
constexpr Index items = 9, steps = 4;
/// The optimizer of a run, which uses gd for experts only.
auto of_experts(const auto& gd) { return InGroups{is_expert, gd, optim::Sgd{.lr = 0.1}}; }
template <class F>
Values run_on(Index shards, int threads, bool moves, const optim::NormalizedGd& gd, const F& optimizer_of) {
  Values found;
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(threads);
    Trainer trainer{ctx,
                    model_of(dist::ExpertParallel{mixture(), &shard}),
                    dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optimizer_of(dist::SyncNorm{gd, &shard}), &shard},
                    Seed{3},
                    Element<double>{}};
    const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
               y = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
    for (Index i = 0; i < steps; ++i) {
      const auto mine = shard.part_of(items);
      trainer.step(x.view().rows(mine.first, mine.count), y.view().rows(mine.first, mine.count));
      if (moves) {
        auto placements = dist::placements(trainer);
        for (std::size_t l = 0; l < placements.size(); ++l)
          for (Index& j : placements[l].shard_of) j = (2 * j + i + static_cast<Index>(l)) % shards;
        dist::move_experts(shard, trainer, placements);
      }
    }
    auto whole = init_params<double, Cpu>(model_of(mixture()), ctx, Seed{9});
    dist::copy_whole(shard, ctx, trainer.params, whole);
    if (shard.index() == 0) found = values_of(whole);
  });
  return found;
}

}  // namespace

TEST_CASE("SyncNorm (2): a step equals loops over all experts") {
  std::mutex mutex;
  for (const Index shards : {1, 2, 3, 7})
    for (const bool per_expert : {true, false})
      for (const bool sum_of_norms : {false, true}) {
        CAPTURE(shards);
        CAPTURE(per_expert);
        CAPTURE(sum_of_norms);
        dist::Alone world;
        dist::run(world, shards, [&](auto& shard) {
          Cpu::Context ctx(1);
          const optim::NormalizedGd options{.lr = 0.5, .per_expert = per_expert, .sum_of_norms = sum_of_norms};
          const dist::SyncNorm gd{options, &shard};
          auto whole = random_bank(ctx, 100), of_grads = random_bank(ctx, 7);
          auto p = part_of(ctx, shard.index(), shards, whole), g = part_of(ctx, shard.index(), shards, of_grads);
          auto state = gd.begin(ctx, p);
          gd.step(ctx, p, g, state);
          auto expected = stepped(ctx, options, 7);
          const auto here = part_of(ctx, shard.index(), shards, expected);
          double largest = 0;
          for_each_tensor(
              [&](const Name&, const auto& a, const auto& b) {
                for (Index i = 0; i < a.size(); ++i)
                  largest = support::larger(largest, std::abs(a.data()[i] - b.data()[i]));
              },
              p, here);
          const std::lock_guard lock(mutex);
          if (per_expert) {  // the bits of one process
            auto of_one = options.begin(ctx, whole);
            options.step(ctx, whole, of_grads, of_one);
            CHECK(values_of(p) == values_of(part_of(ctx, shard.index(), shards, whole)));
          }
          CHECK(state.step == 1);
          CHECK(largest <= 1e-15);
        });
      }
}

TEST_CASE("SyncNorm of NormalizedGd: training equals one process, any placement") {
  const auto check = [](const optim::NormalizedGd& gd, const auto& optimizer_of) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, model_of(mixture()), MeanSquaredError{}, optimizer_of(gd), Seed{3}, Element<double>{}};
    const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
               y = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
    for (Index i = 0; i < steps; ++i) trainer.step(x, y);
    const Values one = values_of(trainer.params);
    for (const Index shards : {1, 2, 4, 6}) {
      CAPTURE(shards);
      const Values all = run_on(shards, 1, false, gd, optimizer_of);
      CHECK(run_on(shards, 2, true, gd, optimizer_of) == all);
      double largest = 0;
      for (std::size_t t = 0; t < one.size(); ++t) {
        REQUIRE(all[t].size() == one[t].size());
        for (std::size_t i = 0; i < one[t].size(); ++i)
          largest = support::larger(largest, std::abs(all[t][i] - one[t][i]));
      }
      CHECK(largest <= 1e-13);
    }
  };
  for (const bool per_expert : {true, false})
    check({.lr = 0.1, .per_expert = per_expert}, [](const auto& gd) { return of_experts(gd); });
  check({.lr = 0.1, .per_expert = false}, [](const auto& gd) { return gd; });
}

TEST_CASE("SyncNorm of NormalizedGd: inconsistent slices throw before any write") {
  std::mutex mutex;
  dist::Alone world;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto whole = random_bank(ctx, 100);
    auto p = part_of(ctx, shard.index(), 3, whole), g = part_of(ctx, shard.index(), 3, whole);
    p.row.resize(experts + 1, 2), g.row.resize(experts + 1, 2);
    const auto before = values_of(p.first.part);
    const dist::SyncNorm gd{optim::NormalizedGd{}, &shard};
    auto state = gd.begin(ctx, p);
    std::string message;
    try {
      gd.step(ctx, p, g, state);
    } catch (const ArgumentError& e) {
      message = e.what();
    }
    const std::lock_guard lock(mutex);
    CHECK(message == "NormalizedGd.step: row: expected a first extent of 5 experts, got 6");
    CHECK(state.step == 0);
    CHECK(values_of(p.first.part) == before);
  });
}
