#include "gatefold/distributed/expert_parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "gatefold/distributed/tensors_on_all_shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

// tests/descriptors/shards.hpp tests every gate, rule and expert on shards. This file tests what those compositions do
// not vary.
namespace {

constexpr Index dim = 6;

auto mixture_of(Index experts) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = experts > 1 ? 2 : 1}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
}

/// Returns how many elements of u differ between the shards (forward and infer) and one process.
template <class T, class B, class M>
int differences(const M& mixture, Index items, Index shards) {
  typename B::Context one(1);
  const auto params = init_params<T, B>(mixture, one, Seed{1});
  const auto x = uniform_tensor<T>(one, Seed{2}, 1, items, dim);
  Tensor<T, 2, B> u(items, dim);
  Saved<M, T, B> saved;
  mixture.forward(one, params, x, u, saved);
  std::atomic<int> wrong = 0;
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    typename B::Context ctx(1);
    const dist::ExpertParallel branch{mixture, &shard};
    const auto mine = shard.part_of(items);
    const auto of_part = init_params<T, B>(branch, ctx, Seed{1});
    const auto part = x.view().rows(mine.first, mine.count);
    Tensor<T, 2, B> v(mine.count, dim), w(mine.count, dim);
    Saved<std::remove_const_t<decltype(branch)>, T, B> kept;
    branch.forward(ctx, of_part, part, v, kept);
    infer(branch, ctx, of_part, part, w);
    const T* expected = u.data() + mine.first * dim;
    for (Index i = 0; i < v.size(); ++i) wrong += v.data()[i] != expected[i] || w.data()[i] != expected[i];
    constexpr bool alone = dist::GlobalGate<decltype(M::gate), T, B>::sees == dist::global::Sees::own;
    if (kept.plan.items() != (alone ? mine.count : items)) ++wrong;
  });
  return wrong;
}

}  // namespace

TEST_CASE("ExpertParallel: equals one process for any experts, items and shards") {
  for (Index experts : {1, 3, 8})
    for (Index items : {0, 1, 5, 130})
      for (Index shards : {1, 2, 4, 6}) {
        CAPTURE(experts);
        CAPTURE(items);
        CAPTURE(shards);
        CHECK(differences<float, Cpu>(mixture_of(experts), items, shards) == 0);
      }
  CHECK(differences<double, Cpu>(mixture_of(8), 40, 3) == 0);
  CHECK(differences<float, CpuBf16>(mixture_of(8), 40, 3) == 0);
}

TEST_CASE("ExpertParallel: WeightOnInput has the bits of one process") {
  const Mixture mixture{published::llama4({.experts = 4, .k = 2}), Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
  for (Index shards : {1, 3}) {
    CHECK(differences<float, Cpu>(mixture, 40, shards) == 0);
    CHECK(differences<float, CpuBf16>(mixture, 40, shards) == 0);
  }
}

TEST_CASE("ExpertParallel: each shard stores shared parameters and own experts") {
  const auto mixture = mixture_of(5);
  Cpu::Context one(1);
  const auto whole = init_params<float, Cpu>(mixture, one, Seed{4});
  dist::Alone world;
  std::atomic<int> wrong = 0;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    const auto part = init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard}, ctx, Seed{4});
    std::vector<std::string> names, of_part;
    for_each_tensor([&](const Name& at, const auto&) { names.push_back(at.str()); }, whole);
    for_each_tensor([&](const Name& at, const auto&) { of_part.push_back(at.str()); }, part);
    if (names != of_part) ++wrong;
    const auto& gate = whole.gate.scores.weight;
    if (std::memcmp(gate.data(), part.gate.scores.weight.data(), static_cast<std::size_t>(gate.size()) * 4)) ++wrong;
    if (part.expert.part.up.extent(0) != shard.part_of(5).count) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE("ExpertParallel: errors name the wrong argument") {
  const auto mixture = mixture_of(4);
  dist::Alone world;
  const auto message = [&](const auto& program) -> std::string {
    try {
      dist::run(world, 1, program);
    } catch (const ArgumentError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          dist::ExpertParallel branch{mixture, &shard};
          const auto params = init_params<float, Cpu>(branch, ctx, Seed{1});
          const Tensor<float, 2, Cpu> x(3, dim + 1);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<decltype(branch), float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }) == "ExpertParallel.forward: x: expected [?, 6], got [3, 7]");
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          dist::ExpertParallel branch{mixture, &shard};
          const auto params = init_params<float, Cpu>(branch, ctx, Seed{1});
          branch.shard = nullptr;
          CHECK_THROWS_WITH_AS((init_params<float, Cpu>(branch, ctx, Seed{1})),
                               "ExpertParallel: shard: expected the address of a shard of dist::run, got null",
                               ArgumentError);
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<decltype(branch), float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }) == "ExpertParallel: shard: expected the address of a shard of dist::run, got null");
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          const dist::ExpertParallel branch{mixture, &shard};
          const auto params = init_params<float, Cpu>(dist::ExpertParallel{mixture_of(3), &shard}, ctx, Seed{1});
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<std::remove_const_t<decltype(branch)>, float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }) == "ExpertParallel: params: experts: expected 4 (the experts of the Mixture), got 3");
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          const dist::ExpertParallel branch{mixture, &shard};
          const Params<std::remove_const_t<decltype(branch)>, float, Cpu> params{};
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<std::remove_const_t<decltype(branch)>, float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }) ==
        "ExpertParallel: params: expected parameters from init, distributed over the shards, got parameters that are "
        "not distributed");
  const auto placed = [&](const dist::Placement& placement) {
    return message([&](auto& shard) {
      Cpu::Context ctx(1);
      init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard, placement}, ctx, Seed{1});
    });
  };
  CHECK(placed({{0, 0, 0, 0}}) == "");
  CHECK(placed({{0, 0, 0}}) == "ExpertParallel: placement: expected a shard for each of 4 experts, got 3");
  CHECK(placed({{0, 0, 1, 0}}) == "ExpertParallel: placement[2]: expected a shard in [0, 1), got 1");
  CHECK(placed({{0, -1, 0, 0}}) == "ExpertParallel: placement[1]: expected a shard in [0, 1), got -1");

  // Parameters of a run on two shards.
  Params<dist::ExpertParallel<decltype(mixture_of(4).gate), decltype(mixture_of(4).expert), dist::Shard<dist::Alone>>,
         float, Cpu>
      of_two;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto params = init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard, {{0, 0, 0, 0}}}, ctx, Seed{1});
    if (shard.index() == 0) of_two = std::move(params);
  });
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          const dist::ExpertParallel branch{mixture, &shard};
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<std::remove_const_t<decltype(branch)>, float, Cpu> saved;
          branch.forward(ctx, of_two, x, u, saved);
        }) == "ExpertParallel: params: shards: expected 1 (the shards of dist::run), got 2");
}

TEST_CASE("ExpertParallel: the placement changes no bit of outputs and gradients") {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                        Experts<Mlp<Gelu>, GatedMlp<Silu>>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9},
                                                                     GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 5}},
                                                           .counts = {4, 2}}};
  using MixtureT = std::remove_const_t<decltype(mixture)>;
  constexpr Index items = 50, shards = 3;
  Cpu::Context one(1);
  const auto params = init_params<float, Cpu>(mixture, one, Seed{1});
  const auto x = uniform_tensor<float>(one, Seed{2}, 1, items, dim),
             du = uniform_tensor<float>(one, Seed{3}, 1, items, dim);
  Tensor<float, 2, Cpu> u(items, dim), dx = constant_tensor<float>(one, 0, items, dim);
  Saved<MixtureT, float, Cpu> saved;
  mixture.forward(one, params, x, u, saved);
  auto grads = zeros_like(one, params);
  backward(mixture, one, params, x, saved, du, dx, grads);
  const std::vector<dist::Placement> placements{
      {}, {{2, 1, 0, 2, 1, 0}}, {{1, 1, 1, 1, 1, 1}}, {{2, 0, 2, 2, 0, 2}}, {{0, 1, 0, 0, 0, 2}}};
  for (const dist::Placement& placement : placements) {
    CAPTURE(placement.shard_of);
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const dist::ExpertParallel branch{mixture, &shard, placement};
      const auto mine = shard.part_of(items);
      const auto rows = [&](const auto& t) { return t.view().rows(mine.first, mine.count); };
      const auto of_part = init_params<float, Cpu>(branch, ctx, Seed{1});
      Saved<std::remove_const_t<decltype(branch)>, float, Cpu> kept;
      Tensor<float, 2, Cpu> v(mine.count, dim), dv = constant_tensor<float>(ctx, 0, mine.count, dim);
      branch.forward(ctx, of_part, rows(x), v, kept);
      auto g = zeros_like(ctx, of_part);
      backward(branch, ctx, of_part, rows(x), kept, rows(du), dv, g);
      const auto same = [](const auto& part, const float* all) {
        return part.size() == 0 || std::memcmp(part.data(), all, static_cast<std::size_t>(part.size()) * 4) == 0;
      };
      if (!same(v, u.data() + mine.first * dim) || !same(dv, dx.data() + mine.first * dim)) ++wrong;
      auto whole = init_params<float, Cpu>(mixture, ctx, Seed{9});
      dist::copy_whole(shard, ctx, g, whole);
      if (shard.index() > 0) return;
      for_each_tensor(
          [&](const Name&, const auto& found, const auto& expected) { wrong += !same(found, expected.data()); },
          whole.expert, grads.expert);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("ExpertParallel: random experts draw the same numbers as one process") {
  const HiddenDropout expert{0.5, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
  constexpr Index items = 24;
  const auto check = [&](const auto& mixture, const auto& extra) {
    using MixtureT = std::remove_cvref_t<decltype(mixture)>;
    Cpu::Context one(1);
    const auto params = init_params<double, Cpu>(mixture, one, Seed{1});
    // All items are equal, so their results differ only by the values that were dropped.
    const Tensor<double, 2, Cpu> x = constant_tensor<double>(one, 1, items, dim),
                                 du = constant_tensor<double>(one, 1, items, dim);
    Tensor<double, 2, Cpu> u(items, dim), dx = constant_tensor<double>(one, 0, items, dim);
    Saved<MixtureT, double, Cpu> saved;
    mixture.forward(one, params, x, u, saved, extra);
    auto grads = zeros_like(one, params);
    backward(mixture, one, params, x, saved, du, dx, grads, extra);
    CHECK(!std::equal(u.data(), u.data() + dim, u.data() + 2 * dim));  // item 2 has other dropped values than item 0
    for (const dist::Placement& placement :
         {dist::Placement{}, dist::Placement{{0, 0, 0, 0}}, dist::Placement{{1, 0, 1, 0}}})
      for (Index shards : {2, 3, 13}) {  // of thirteen shards, one has no items
        CAPTURE(placement.shard_of);
        CAPTURE(shards);
        std::atomic<int> wrong = 0;
        dist::Alone world;
        dist::run(world, shards, [&](auto& shard) {
          Cpu::Context ctx(1);
          const dist::ExpertParallel branch{mixture, &shard, placement};
          const auto of_part = init_params<double, Cpu>(branch, ctx, Seed{1});
          const auto pairs = shard.part_of(items / 2);  // sequences of two items
          const dist::Range mine{2 * pairs.first, 2 * pairs.count};
          const auto rows = [&](const auto& t) { return t.view().rows(mine.first, mine.count); };
          Tensor<double, 2, Cpu> v(mine.count, dim), dv = constant_tensor<double>(ctx, 0, mine.count, dim);
          Saved<std::remove_const_t<decltype(branch)>, double, Cpu> kept;
          auto of_shard = extra;
          if (shard.index() > 0) of_shard.noise = {};  // shard 0's noise is the one used
          branch.forward(ctx, of_part, rows(x), v, kept, of_shard);
          auto g = zeros_like(ctx, of_part);
          backward(branch, ctx, of_part, rows(x), kept, rows(du), dv, g, of_shard);
          wrong += !std::equal(v.data(), v.data() + v.size(), u.data() + mine.first * dim);
          wrong += !std::equal(dv.data(), dv.data() + dv.size(), dx.data() + mine.first * dim);
        });
        CHECK(wrong == 0);
      }
  };
  const Noise noise{Random{Seed{3}, 1}};
  const Mixture sparse{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, expert};
  check(sparse, Extra<std::remove_const_t<decltype(sparse)>, double, Cpu>{.noise = noise});
  const Mixture dense{SoftMoe{.count = 4, .slots = 2}, expert};
  check(dense, Extra<std::remove_const_t<decltype(dense)>, double, Cpu>{.noise = noise, .branch = {.length = 2}});
}

TEST_CASE("ExpertParallel: gates that need all items have bit-identical gradients") {
  const Mixture mixture{ComposedGate<LinearScores, TokenSimilarity, NoisyTopK<>>{
                            .scores = {.model_dim = dim, .experts = 4}, .mixing = {.tau = 0.5}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
  using MixtureT = std::remove_const_t<decltype(mixture)>;
  constexpr Index items = 21;
  Cpu::Context one(1);
  const auto params = init_params<double, Cpu>(mixture, one, Seed{1});
  const auto x = uniform_tensor<double>(one, Seed{2}, 1, items, dim),
             du = uniform_tensor<double>(one, Seed{3}, 1, items, dim);
  Tensor<double, 2, Cpu> u(items, dim), dx = constant_tensor<double>(one, 0.25, items, dim);
  Saved<MixtureT, double, Cpu> saved;
  mixture.forward(one, params, x, u, saved);
  auto grads = zeros_like(one, params);
  backward(mixture, one, params, x, saved, du, dx, grads);
  for (Index shards : {1, 2, 3, 4}) {
    CAPTURE(shards);
    Tensor<double, 2, Cpu> dx_of_shards = constant_tensor<double>(one, 0.25, items, dim);
    std::vector<std::vector<double>> gate(static_cast<std::size_t>(shards));
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const dist::ExpertParallel branch{mixture, &shard};
      const auto mine = shard.part_of(items);
      const auto of_part = init_params<double, Cpu>(branch, ctx, Seed{1});
      Saved<std::remove_const_t<decltype(branch)>, double, Cpu> kept;
      Tensor<double, 2, Cpu> v(mine.count, dim);
      branch.forward(ctx, of_part, x.view().rows(mine.first, mine.count), v, kept);
      auto g = zeros_like(ctx, of_part);
      backward(branch, ctx, of_part, x.view().rows(mine.first, mine.count), kept,
               du.view().rows(mine.first, mine.count), dx_of_shards.view().rows(mine.first, mine.count), g);
      auto& to = gate[static_cast<std::size_t>(shard.index())];
      for_each_tensor([&](const Name&, const auto& t) { to.insert(to.end(), t.data(), t.data() + t.size()); }, g.gate);
    });
    CHECK(std::equal(dx.data(), dx.data() + dx.size(), dx_of_shards.data()));
    std::vector<double> expected, sum(gate[0].size(), 0);
    for_each_tensor([&](const Name&, const auto& t) { expected.insert(expected.end(), t.data(), t.data() + t.size()); },
                    grads.gate);
    for (const auto& part : gate)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    CHECK(sum == expected);  // one shard has the whole gradient, the others have 0
  }
}

TEST_CASE("ExpertParallel: attention-aware gates match one process") {
  constexpr Index length = 5, items = 6 * length;
  const auto check = [&](const auto& gate, bool padding) {
    const Mixture mixture{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
    const auto block = [](const auto& branch) {
      return Block{Attention{.model_dim = dim, .heads = 2, .causal = true}, Residual{update::HeavyBall{}, branch}};
    };
    using Outcome = std::vector<std::vector<double>>;  // y, dx and gradients
    const auto trained = [&](const auto& model, Index first, Index count) {
      using ModelT = std::remove_cvref_t<decltype(model)>;
      Cpu::Context ctx(1);
      const auto params = init_params<double, Cpu>(model, ctx, Seed{1});
      const auto all = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim),
                 dall = uniform_tensor<double>(ctx, Seed{3}, 1, items, dim);
      const auto x = all.view().rows(first, count), dy = dall.view().rows(first, count);
      Carry<ModelT, double, Cpu> carry, dcarry;
      Saved<ModelT, double, Cpu> saved;
      Tensor<double, 2, Cpu> y(count, dim), dx = constant_tensor<double>(ctx, 0, count, dim);
      auto extra = extra_of<Extra<ModelT, double, Cpu>>(Segment<double, Cpu>{.length = length});
      std::vector<double> valid(items, 1);
      for (Index n = 3; n < items; n += 4) valid[static_cast<std::size_t>(n)] = 0;
      if (padding) extra.layer.valid = View<const double, 1, Cpu>(valid).rows(first, count);
      model.begin(ctx, params, count, carry);
      model.forward(ctx, params, x, carry, y, saved, extra);
      auto grads = zeros_like(ctx, params);
      model.begin(ctx, params, count, dcarry);
      set_zero(ctx, dcarry);
      backward(model, ctx, params, x, saved, dy, dcarry, dx, grads, extra);
      Outcome outcome;
      const auto keep = [&](const auto& t) { outcome.emplace_back(t.data(), t.data() + t.size()); };
      keep(y);
      keep(dx);
      for_each_tensor([&](const Name&, const auto& t) { keep(t); }, grads);
      return outcome;
    };
    const Outcome expected = trained(block(mixture), 0, items);
    for (const Index shards : {2, 3, 7}) {  // of seven shards, one has no items
      CAPTURE(shards);
      std::vector<Outcome> parts(static_cast<std::size_t>(shards));
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        const auto mine = shard.part_of(items / length);
        parts[static_cast<std::size_t>(shard.index())] =
            trained(block(dist::ExpertParallel{mixture, &shard}), mine.first * length, mine.count * length);
      });
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        std::vector<double> joined, sum(expected[i].size());
        for (const Outcome& part : parts) {
          joined.insert(joined.end(), part[i].begin(), part[i].end());
          if (part[i].size() == sum.size())
            for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += part[i][k];
        }
        if (joined.size() == expected[i].size()) {  // y, dx, gradients of experts: each shard has other rows
          CHECK(joined == expected[i]);
        } else {
          for (std::size_t k = 0; k < sum.size(); ++k) CHECK(sum[k] == doctest::Approx(expected[i][k]).epsilon(1e-12));
        }
      }
    }
  };
  for (const bool padding : {false, true}) {
    check(AttentionAware<SoftmaxTopK>{.scores = {.experts = 4}, .selection = {.k = 2}}, padding);
    check(WithAuxiliary<AttentionAware<SoftmaxTopK>, Balance, ZLoss>{.scores = {.experts = 4}, .selection = {.k = 2}},
          padding);
    check(
        SimilarityAware<SoftmaxTopK>{
            .scores = {.experts = 4}, .mixing = {.learned_metric = true}, .selection = {.k = 2}},
        padding);
    check(SimilarityAware<GShardTop2>{.scores = {.experts = 4}}, padding);
  }
}
