// Shards on devices, with gates and experts of many kinds.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.cuh"
#include "support/larger.hpp"
#include "support/processes.hpp"
#include "support/shard_devices.cuh"
#include "support/shard_run.hpp"

using namespace gatefold;
using support::Processes;
using test::devices;
using test::OnDeviceOf;

namespace {

/// Compares u, dx and gradients of three shards on two devices with those of one process.
template <class T, class B, class M>
void expect_one_process(const M& mixture, const Extra<M, T, B>& extra, Index length, double tolerance) {
  constexpr Index sequences = 7, dim = test::run_dim;
  const Index items = sequences * length;
  const auto read = [](auto& ctx, const auto& t) {
    std::vector<T> values(static_cast<std::size_t>(t.size()));
    B::to_host(ctx, t.size(), t.data(), values.data());
    return values;
  };
  const auto read_pack = [&](auto& ctx, const auto& pack) {
    std::vector<T> all;
    for_each_learned(
        [&](const Name&, const auto& t) {
          const auto part = read(ctx, t);
          all.insert(all.end(), part.begin(), part.end());
        },
        pack);
    return all;
  };
  const int on_devices = devices();
  typename B::Context one;
  const auto params = init_params<T, B>(mixture, one, Seed{1});
  const auto x = uniform_tensor<T>(one, Seed{2}, 1, items, dim), du = uniform_tensor<T>(one, Seed{3}, 1, items, dim);
  auto u = zeros_like(one, x), dx = zeros_like(one, x);
  Saved<M, T, B> saved;
  mixture.forward(one, params, x, u, saved, extra);
  auto grads = zeros_like(one, params);
  backward(mixture, one, params, x, saved, du, dx, grads, extra);

  std::vector<T> found_u(static_cast<std::size_t>(items * dim)), found_dx(found_u.size()), found_grads;
  Processes alone(1);
  Processes::World world{&alone, 0};
  dist::run(world, 3, [&](auto& shard) {
    OnDeviceOf{on_devices}(shard.index());
    typename B::Context ctx;
    const dist::ExpertParallel branch{mixture, &shard};
    const auto part = shard.part_of(sequences);
    const Index first = part.first * length, count = part.count * length;
    const auto all = uniform_tensor<T>(ctx, Seed{2}, 1, items, dim),
               dall = uniform_tensor<T>(ctx, Seed{3}, 1, items, dim);
    const auto of_part = init_params<T, B>(branch, ctx, Seed{1});
    Tensor<T, 2, B> v(count, dim), dv(count, dim);
    fill(ctx, dv.view(), 0);
    Saved<std::remove_const_t<decltype(branch)>, T, B> kept;
    branch.forward(ctx, of_part, all.view().rows(first, count), v, kept, extra);
    auto g = zeros_like(ctx, of_part);
    backward(branch, ctx, of_part, all.view().rows(first, count), kept, dall.view().rows(first, count), dv, g, extra);
    dist::all_reduce(shard, ctx, g);
    auto whole = init_params<T, B>(mixture, ctx, Seed{9});
    dist::copy_whole(shard, ctx, g, whole);
    const auto own_u = read(ctx, std::as_const(v)), own_dx = read(ctx, std::as_const(dv));
    std::copy(own_u.begin(), own_u.end(), found_u.begin() + first * dim);
    std::copy(own_dx.begin(), own_dx.end(), found_dx.begin() + first * dim);
    if (shard.index() == 0) found_grads = read_pack(ctx, whole);
  });
  const auto check = [&](const std::vector<T>& found, const std::vector<T>& expected) {
    REQUIRE(found.size() == expected.size());
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      largest = support::larger(largest, std::abs(double(expected[i])));
      difference = support::larger(difference, std::abs(double(found[i]) - double(expected[i])));
    }
    CHECK(largest > 0);
    CHECK(difference <= tolerance * largest);
  };
  check(found_u, read(one, std::as_const(u)));
  check(found_dx, read(one, std::as_const(dx)));
  check(found_grads, read_pack(one, grads));
}

}  // namespace

TEST_CASE("cuda: gates and experts on shards match one process") {
  const Mlp<Gelu> mlp{.model_dim = test::run_dim, .hidden_dim = 5};
  const SoftmaxTopK top_k{.scores = {.experts = 5}, .selection = {.k = 2}};
  const auto check = [](const auto& mixture, const auto& extra, Index length = 1) {
    expect_one_process<double, Cuda>(mixture, extra, length, 1e-13);
  };
  SUBCASE("Capacity") {
    const Mixture mixture{ComposedGate<LinearScores, Independent, Capacity<TopK>, Balance>{.scores = {.experts = 5}},
                          mlp};
    check(mixture, Extra<std::remove_const_t<decltype(mixture)>, double, Cuda>{});
  }
  SUBCASE("mixing within the sequences of a shard") {
    const Mixture mixture{SimilarityAware<SoftmaxTopK>{.scores = {.experts = 5}, .selection = {.k = 2}}, mlp};
    check(mixture, Extra<std::remove_const_t<decltype(mixture)>, double, Cuda>{.mixing = {.length = 3}}, 3);
  }
  SUBCASE("bias balancing: all items are exchanged") {
    const Mixture mixture{ComposedGate<LinearScores, Independent, SigmoidBias>{.scores = {.experts = 5}}, mlp};
    check(mixture, Extra<std::remove_const_t<decltype(mixture)>, double, Cuda>{});
  }
  SUBCASE("Soft MoE, experts of two kinds") {
    using Two = Experts<Mlp<Gelu>, Linear>;
    const Mixture mixture{SoftMoe{.count = 5, .slots = 2},
                          Two{.kinds = {mlp, Linear{.model_dim = test::run_dim}}, .counts = {2, 3}}};
    check(mixture, Extra<std::remove_const_t<decltype(mixture)>, double, Cuda>{.length = 3}, 3);
  }
  SUBCASE("experts with random numbers") {
    const Mixture mixture{top_k, HiddenDropout{0.5, mlp}};
    check(mixture, Extra<std::remove_const_t<decltype(mixture)>, double, Cuda>{.noise = {Random{Seed{3}, 1}}});
  }
  SUBCASE("bfloat16") {
    const Mixture mixture{top_k, mlp};
    // The gate's gradient adds 7 floats in another order than one process. Each addition may lose 2^-24.
    expect_one_process<float, CudaBf16>(mixture, {}, 1, 1e-6);
  }
}
