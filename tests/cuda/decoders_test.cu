// Whole decoders on the device: layers forward and backward, training, and generation with a KV cache.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "gatefold/model/decoder.hpp"
#include "support/larger.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index sequences = 2, length = 7, items = sequences * length, vocabulary = 13;

/// A decoder of the form of gpt-oss: grouped queries, sinks, windows, clamped experts with biases.
const DecoderSizes gpt_oss{
    .vocabulary = vocabulary,
    .model_dim = 12,
    .depth = 2,
    .attention = {.heads = 4,
                  .kv_heads = 2,
                  .head_dim = 6,
                  .rotary = {.rope_type = RopeType::yarn, .factor = 4, .original_max_position_embeddings = 8},
                  .bias = true,
                  .output_bias = true,
                  .sinks = true},
    .windows = {3, 0},
    .experts = 5,
    .picks = 2,
    .hidden_dim = 7,
    .clamped = true};
/// A decoder of the form of DeepSeek-V3: latent attention, a sigmoid router with groups, a dense and a shared expert.
const DecoderSizes deepseek_v3{.vocabulary = vocabulary,
                               .model_dim = 12,
                               .depth = 2,
                               .latent = {.heads = 3,
                                          .query_rank = 5,
                                          .latent_dim = 7,
                                          .plain_dim = 3,
                                          .rotary_dim = 4,
                                          .value_dim = 5,
                                          .rotary = {.interleaved = true}},
                               .experts = 6,
                               .picks = 2,
                               .hidden_dim = 7,
                               .sigmoid_router = true,
                               .router_scale = 2.5,
                               .groups = 3,
                               .top_groups = 2,
                               .shared_dim = 9,
                               .dense_layers = {0},
                               .dense_dim = 10,
                               .tied = true};

template <class Branch>
constexpr bool is_chosen = false;
template <class Gate>
constexpr bool is_chosen<Mixture<Gate, GatedMlp<ClampedSilu, ClampedPlusOne>>> = true;
template <class Expert, class Shared>
constexpr bool is_chosen<WithShared<Mixture<SigmoidTopK, Expert>, Shared>> = true;

/// Calls f(model) with the decoder of these sizes. f is compiled only for the two forms above, to shorten the build.
template <class F>
void with(const DecoderSizes& sizes, const F& f) {
  bool called = false;
  with_decoder(sizes, [&](const auto& model) {
    using Branch =
        std::remove_cvref_t<decltype(std::get<1>(std::get<1>(model.layers).layer.layers).branch.branch.first)>;
    if constexpr (is_chosen<Branch>) {
      f(model);
      called = true;
    }
  });
  CHECK(called);
}

Tensor<Index, 1, Naive> tokens(Index shift) {
  Tensor<Index, 1, Naive> ids(items);
  for (Index i = 0; i < items; ++i) ids(i) = (i * i + 3 * i + shift) % vocabulary;
  return ids;
}

struct Largest {
  double of = 0, apart = 0;  // the largest expected number, and the largest difference
  void add(double expected, double got) {
    of = support::larger(of, std::abs(expected));
    apart = support::larger(apart, std::abs(expected - got));
  }
};

/// Compares the tensors of two packs.
struct ExpectClose {
  Backends& on;
  double tolerance;
  template <class A, class B>
  void operator()(const Name& name, const A& naive, const B& cuda) const {
    using T = std::remove_cvref_t<decltype(*naive.data())>;
    CAPTURE(name.str());
    REQUIRE(naive.size() == cuda.size());
    std::vector<T> got(static_cast<std::size_t>(cuda.size()));
    Cuda::to_host(on.cuda, cuda.size(), cuda.data(), got.data());
    Largest largest;
    for (Index i = 0; i < naive.size(); ++i) largest.add(naive.data()[i], got[static_cast<std::size_t>(i)]);
    CHECK(largest.apart <= tolerance * largest.of);
  }
};

/// Returns the outputs [sequences, length, D] of a decoder that reads segments of the given lengths.
template <class T, class B, class M, class P>
Tensor<T, 2, Naive> in_segments(Backends& on, const DecoderSizes& sizes, const M& model, const P& params,
                                const std::vector<Index>& lengths) {
  auto& ctx = on.of<B>();
  const Tensor<Index, 1, Naive> ids = tokens(0);
  Tensor<T, 2, Naive> all(items, sizes.model_dim);
  KvCache<T, B> cache(ctx, sizes.cache(sequences, length));
  Carry<M, T, B> carry;
  Index begin = 0;
  for (const Index count : lengths) {
    Tensor<Index, 1, Naive> now(sequences * count);
    for (Index s = 0; s < sequences; ++s)
      for (Index t = 0; t < count; ++t) now(s * count + t) = ids(s * length + begin + t);
    Tensor<Index, 1, B> x;
    transfer(ctx, now, x);
    Tensor<T, 2, B> y(now.size(), sizes.model_dim);
    model.begin(ctx, params, now.size(), carry);
    infer(model, ctx, params, x, carry, y,
          extra_of<Extra<M, T, B>>(Segment<T, B>{.length = count, .cache = cache.of(count)}));
    cache.advance();
    std::vector<T> host(static_cast<std::size_t>(y.size()));
    B::to_host(ctx, y.size(), std::as_const(y).data(), host.data());
    for (Index s = 0; s < sequences; ++s)
      std::copy_n(host.data() + s * count * sizes.model_dim, count * sizes.model_dim, &all(s * length + begin, 0));
    begin += count;
  }
  return all;
}

template <class T>
void check(const DecoderSizes& sizes) {
  with(sizes, [&](const auto& model) {
    using M = std::remove_cvref_t<decltype(model)>;
    Backends on;
    const optim::Clipped optimizer{optim::AdamW{.lr = 0.05, .decay = 0.1}, 0.7};
    Trainer naive{on.naive, model, sizes.loss(), optimizer, Seed{1}, Element<T>{}};
    Trainer cuda{on.cuda, model, sizes.loss(), optimizer, Seed{1}, Element<T>{}};
    for_each_tensor(FillZeros{on, Seed{2}}, naive.params);
    transfer(on.cuda, naive.params, cuda.params);
    const double tolerance = 10 * relative_tolerance<T>;
    for (const Index step : {0, 1}) {
      CAPTURE(step);
      const auto x = tokens(step), next = tokens(step + 1);
      const auto cuda_x = on_cuda<Tensor<Index, 1, Cuda>>(on, x), cuda_next = on_cuda<Tensor<Index, 1, Cuda>>(on, next);
      const double expected = naive.step(x, next, extra_of<Extra<M, T, Naive>>(Segment<T, Naive>{.length = length}));
      const double got = cuda.step(cuda_x, cuda_next, extra_of<Extra<M, T, Cuda>>(Segment<T, Cuda>{.length = length}));
      CHECK(std::abs(got - expected) <= tolerance * expected);
      for_each_tensor(ExpectClose{on, tolerance}, naive.grads, cuda.grads);
      for_each_tensor(ExpectClose{on, tolerance}, naive.params, cuda.params);
    }
    transfer(on.cuda, naive.params, cuda.params);
    const auto whole = in_segments<T, Naive>(on, sizes, model, naive.params.model, {length});
    for (const auto& lengths : {std::vector<Index>{length}, {4, 1, 2}}) {
      const auto got = in_segments<T, Cuda>(on, sizes, model, cuda.params.model, lengths);
      Largest largest;
      for (Index i = 0; i < whole.size(); ++i) largest.add(whole.data()[i], got.data()[i]);
      CHECK(largest.of > 0);
      CHECK(largest.apart <= tolerance * largest.of);
    }
  });
}

}  // namespace

TEST_CASE("cuda: decoders train and generate like the naive backend"){SUBCASE("gpt-oss"){check<double>(gpt_oss);
}
SUBCASE("DeepSeek-V3") { check<double>(deepseek_v3); }
#ifdef GATEFOLD_SLOW_TESTS
SUBCASE("gpt-oss, float") { check<float>(gpt_oss); }
#endif
}

TEST_CASE("cuda: layers of decoders match the naive backend") {
  const auto layers = [](const DecoderSizes& sizes) {
    with(sizes, [](const auto& model) {
      Backends on;
      const std::string speed = "grads.layers.1.layers.1.branch.branch.first.branch.gate.selection.speed";
      expect_same_layer<double>(on, std::get<1>(model.layers),
                                {.items = items, .length = length, .expected = {.zeros = {speed}}});
    });
  };
  SUBCASE("gpt-oss") { layers(gpt_oss); }
  SUBCASE("DeepSeek-V3") { layers(deepseek_v3); }
}
