#include "gatefold/dist/expert_parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

// Every gate, rule and expert on shards: tests/descriptors/shards.hpp. Here what compositions do not vary.
namespace {

constexpr Index dim = 6;

auto mixture_of(Index experts) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = experts > 1 ? 2 : 1}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
}

/// u of the shards, forward and infer, beside that of one process: differing elements.
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
    if (kept.plan.items() != items) ++wrong;  // of all shards
  });
  return wrong;
}

}  // namespace

TEST_CASE("any number of experts and items on any number of shards") {
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

TEST_CASE("parameters of a shard: the names of the mixture, the gate's values, its own experts") {
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

TEST_CASE("errors name what does not fit") {
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
                               "ExpertParallel: shard: expected one of dist::run, got null", ArgumentError);
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<decltype(branch), float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }) == "ExpertParallel: shard: expected one of dist::run, got null");
  CHECK(message([&](auto& shard) {
          Cpu::Context ctx(1);
          const dist::ExpertParallel branch{mixture, &shard};
          const auto params = init_params<float, Cpu>(dist::ExpertParallel{mixture_of(3), &shard}, ctx, Seed{1});
          const Tensor<float, 2, Cpu> x(3, dim);
          Tensor<float, 2, Cpu> u(3, dim);
          Saved<std::remove_const_t<decltype(branch)>, float, Cpu> saved;
          branch.forward(ctx, params, x, u, saved);
        }).find("expected [4, 6, 9], got [3, 6, 9]") != std::string::npos);
}

TEST_CASE("experts that draw numbers draw others on each shard, the same ones on any day") {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                        HiddenDropout{0.5, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}}};
  constexpr Index items = 24;
  const auto run = [&](Index shards, bool noise) {
    std::vector<double> all(items * dim);
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const dist::ExpertParallel branch{mixture, &shard};
      const auto params = init_params<double, Cpu>(branch, ctx, Seed{1});
      // Every item the same: what differs is what was dropped.
      const Tensor<double, 2, Cpu> x = constant_tensor<double>(ctx, 1, items / shards, dim);
      Tensor<double, 2, Cpu> u(items / shards, dim);
      Saved<std::remove_const_t<decltype(branch)>, double, Cpu> saved;
      Extra<std::remove_const_t<decltype(branch)>, double, Cpu> extra{};
      if (noise) extra.noise = {Random{Seed{3}, 1}};
      branch.forward(ctx, params, x, u, saved, extra);
      std::copy_n(u.data(), u.size(), all.data() + shard.index() * u.size());
    });
    return all;
  };
  const auto none = run(2, false), once = run(2, true), again = run(2, true);
  CHECK(std::equal(none.begin(), none.begin() + dim, none.begin() + dim));
  CHECK(once == again);
  for (Index n = 1; n < items; ++n) CHECK(!std::equal(once.begin(), once.begin() + dim, once.begin() + n * dim));

  // One shard draws as a Mixture does.
  Cpu::Context ctx(1);
  const auto params = init_params<double, Cpu>(mixture, ctx, Seed{1});
  const Tensor<double, 2, Cpu> x = constant_tensor<double>(ctx, 1, items, dim);
  Tensor<double, 2, Cpu> u(items, dim);
  Saved<std::remove_const_t<decltype(mixture)>, double, Cpu> saved;
  mixture.forward(ctx, params, x, u, saved, {.noise = {Random{Seed{3}, 1}}});
  CHECK(run(1, true) == std::vector<double>(u.data(), u.data() + u.size()));
}

TEST_CASE("a gate that mixes items has the gradients of one process, to the bit") {
  const Mixture mixture{SimilarityAware<SoftmaxTopK>{
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
    CHECK(sum == expected);  // one shard has all of it
  }
}
