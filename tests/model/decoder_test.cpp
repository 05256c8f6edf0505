#include "gatefold/model/decoder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/pass.hpp"
#include "support/quantised.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

DecoderSizes tiny(Index shared_dim) {
  return {.vocabulary = 13,
          .model_dim = 8,
          .depth = 3,
          .attention = {.heads = 4, .kv_heads = 2},
          .experts = 4,
          .picks = 2,
          .hidden_dim = 6,
          .shared_dim = shared_dim,
          .dense_layers = {1},
          .dense_dim = 7};
}

/// Layers 0 and 2 attend in chunks of 3 positions, layer 1 has no positions.
DecoderSizes like_llama4() {
  DecoderSizes sizes = tiny(6);
  sizes.weight_on_input = true;
  sizes.attention.norm = QueryKeyNorm::rotated_head;
  sizes.attention.rotary.interleaved = true;
  sizes.attention.temperature = {.floor_scale = 2, .attn_scale = 0.3};
  sizes.chunks = {3, 0, 3};
  sizes.unrotated_layers = {1};
  return sizes;
}

}  // namespace

TEST_CASE("with_decoder: training lowers the loss; threads change no bit") {
  for (const DecoderSizes& sizes : {tiny(0), tiny(5), like_llama4()}) {
    std::vector<double> outcomes[2];
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      with_decoder(sizes, [&](const auto& model) {
        Trainer trainer{ctx, model, sizes.loss(), optim::AdamW{.lr = 1e-2}, Seed{1}};
        const std::vector<Index> ids{1, 5, 2, 7, 3, 1, 5, 2, 7, 3}, next{5, 2, 7, 3, 1, 5, 2, 7, 3, 1};
        const auto extra = extra_of<typename decltype(trainer)::Extra>(Segment<float, Cpu>{.length = 5});
        const double before = trainer.step(ids, next, extra);
        double after = before;
        for (int step = 0; step < 30; ++step) after = trainer.step(ids, next, extra);
        CHECK(after < 0.5 * before);
        outcomes[threads - 1] = values(trainer.params);
      });
    }
    CHECK(same_bits(outcomes[0], outcomes[1]));
  }
}

TEST_CASE("with_decoder: only the chosen branch of a layer has parameters") {
  Cpu::Context ctx(1);
  with_decoder(tiny(0), [&](const auto& model) {
    const auto params = init_params<float, Cpu>(model, ctx, Seed{1});
    std::set<std::string> names;
    for_each_tensor([&](const Name& at, const auto& t) { t.size() > 0 ? void(names.insert(at.str())) : void(); },
                    params);
    const std::string mixture = "layers.1.layers.0.layers.1.branch.branch.first.expert.up",
                      dense = "layers.1.layers.1.layers.1.branch.branch.second.up";
    CHECK(names.contains(mixture));
    CHECK(names.contains(dense));
    CHECK_FALSE(names.contains("layers.1.layers.1.layers.1.branch.branch.first.expert.up"));
  });
}

TEST_CASE("with_decoder: cached steps give the bits of one prefill") {
  constexpr Index items = 20;
  const std::vector<Index> ids{1, 5, 2, 7, 3, 1, 5, 2, 7, 3, 12, 0, 4, 4, 9, 8, 11, 10, 6, 1};
  const DecoderSizes sizes = like_llama4();
  with_decoder(sizes, [&](const auto& model) {
    using M = std::remove_cvref_t<decltype(model)>;
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      const auto params = init_params<float, Cpu>(model, ctx, Seed{1});
      Tensor<float, 2, Cpu> whole(items, sizes.model_dim), parts(items, sizes.model_dim);
      const auto run = [&](Index first, Index count, const CacheView<float, Cpu>& cache, View<float, 2, Cpu> y) {
        Carry<M, float, Cpu> carry;
        model.begin(ctx, params, count, carry);
        infer(model, ctx, params, View<const Index, 1, Cpu>(ids.data() + first, count), carry, y,
              extra_of<Extra<M, float, Cpu>>(Segment<float, Cpu>{.length = count, .cache = cache}));
      };
      run(0, items, {}, whole.view());
      for (const Index step : {1, 4, 7}) {
        KvCache<float, Cpu> cache(ctx, sizes.cache(1, items));
        for (Index first = 0; first < items; first += step) {
          const Index count = std::min(step, items - first);
          run(first, count, cache.of(count), parts.view().rows(first, count));
          cache.advance();
        }
        CAPTURE(step);
        CHECK(same_bits(values(parts), values(whole)));
      }
    }
  });
}

TEST_CASE("DecoderSizes.cache: sizes fit keys and values, or latent vectors") {
  DecoderSizes sizes = tiny(0);
  CHECK(sizes.cache(2, 100).layers == 3);
  CHECK(sizes.cache(2, 100).sequences == 2);
  CHECK(sizes.cache(2, 100).parts == 2 * 2);
  CHECK(sizes.cache(2, 100).width == 2);
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.attention.window = 10;
  CHECK(sizes.cache(2, 100).keep == 9);
  sizes.windows = {10, 0, 10};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.windows = {10, 20, 10};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.windows = {20, 20, 20};
  CHECK(sizes.cache(2, 100).keep == 19);
  sizes.windows = {};
  sizes.attention.window = 0;
  sizes.chunks = {7, 7, 7};
  CHECK(sizes.cache(2, 100).keep == 6);
  sizes.chunks = {7, 0, 7};
  CHECK(sizes.cache(2, 100).keep == 0);
  sizes.chunks = {};
  sizes.latent = {.heads = 4, .latent_dim = 5, .plain_dim = 2, .rotary_dim = 4, .value_dim = 3};
  CHECK(sizes.cache(2, 100).parts == 1);
  CHECK(sizes.cache(2, 100).width == 9);
}

TEST_CASE("with_decoder: wrong sizes are refused") {
  DecoderSizes sizes = tiny(0);
  sizes.dense_layers = {3};
  const auto message = [&] { return message_of([&] { with_decoder(sizes, [](const auto&) {}); }); };
  CHECK(message() == "DecoderSizes: dense_layers: expected a layer from 0 to 2, got 3");
  sizes.windows = {4, 0};
  CHECK(message() == "DecoderSizes: windows.size(): expected 0 or 3 (depth), got 2");
  sizes.windows = {};
  sizes.dense_layers = {};
  sizes.unrotated_layers = {0, -1};
  CHECK(message() == "DecoderSizes: unrotated_layers: expected a layer from 0 to 2, got -1");
  sizes.unrotated_layers = {};
  sizes.chunks = {4};
  CHECK(message() == "DecoderSizes: chunks.size(): expected 0 or 3 (depth), got 1");
  sizes.chunks = {};
  sizes.weight_on_input = true;
  CHECK(message() == "DecoderSizes: shared_dim: expected at least 1, because weight_on_input is given, got 0");
  sizes.clamped = true;
  CHECK(message() ==
        "DecoderSizes: weight_on_input: expected false, because a latent_dim or clamped is given, got true");
  sizes.weight_on_input = sizes.clamped = false;
  sizes.sigmoid_router = true;
  CHECK(message() == "DecoderSizes: sigmoid_router: expected false, because latent_dim is 0, got true");
  sizes.sigmoid_router = false;
  sizes.clamped = true;
  sizes.shared_dim = 3;
  CHECK(message() == "DecoderSizes: clamped: expected false, because a latent_dim or shared_dim is given, got true");
  sizes.clamped = false;
  sizes.latent = {.heads = 4, .latent_dim = 5, .plain_dim = 2, .rotary_dim = 4, .value_dim = 3};
  sizes.windows = {1, 2, 3};
  CHECK(message() == "DecoderSizes: windows: expected none, because latent attention has no window, got 3");
  sizes.windows = {};
  sizes.unrotated_layers = {1};
  CHECK(message() == "DecoderSizes: chunks and unrotated_layers: expected none, because a latent_dim is given, got 1");
  sizes.unrotated_layers = {};
  sizes.shared_dim = 0;
  CHECK(message() == "DecoderSizes: shared_dim: expected at least 1, because latent_dim is given, got 0");
  sizes.depth = 0;
  CHECK(message() == "DecoderSizes: depth: expected at least 1, got 0");
}

using support::message_of;

namespace {

// The vocabulary has two blocks in StreamedCrossEntropy, and `dim` has two blocks of the depth of a product.
constexpr Index vocabulary = StreamedCrossEntropy::Blocks::columns + 70, dim = 300;

auto layers() {
  return Chain{Embedding{.vocabulary = vocabulary, .model_dim = dim},
               Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                       GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 32}}};
}
StreamedCrossEntropy loss_of(bool tied, bool bias = true) {
  return {.vocabulary = vocabulary, .model_dim = dim, .bias = bias, .tied = tied};
}
template <class B>
auto made(typename B::Context& ctx, const StreamedCrossEntropy& loss) {
  auto model = init_params<float, B>(layers(), ctx, Seed{1});
  return ModelAndLoss<decltype(model), Params<StreamedCrossEntropy, float, B>>{
      std::move(model), init_params<float, B>(loss, ctx, Seed{2})};
}
/// Returns the weights W [V, D] of the output layer as made() makes them.
std::vector<float> output_of(bool tied) {
  Cpu::Context ctx(1);
  const auto params = made<Cpu>(ctx, loss_of(tied));
  const auto w = detail_::frozen_decoder::output_weights(params.model, params.loss);
  return {w.data(), w.data() + w.size()};
}

/// Returns whether the first `count` floats of two tensors have the same bits.
template <class A, class B>
bool same_bits(const A& a, const B& b, Index count) {
  return std::memcmp(a.data(), b.data(), std::size_t(count) * sizeof(float)) == 0;
}

/// Random outputs y of the model, with their logits and losses.
template <class B>
struct Result {
  Tensor<float, 2, B> y, logits;
  Tensor<float, 1, B> each;
};
/// Computes the logits and losses of random outputs with a frozen output layer. Several threads share even short work.
template <class B>
Result<B> computed(const StreamedCrossEntropy& loss, FreezeOptions options, Index rows, int threads) {
  typename B::Context ctx(threads, threads > 1);
  const auto frozen = freeze(ctx, made<B>(ctx, loss), std::move(options));
  Result<B> r{uniform_tensor<float>(ctx, Seed{3}, 2.0, rows, dim), {}, {}};
  r.logits.resize(rows, vocabulary);
  r.each.resize(rows);
  std::vector<Index> labels;
  for (Index n = 0; n < rows; ++n) labels.push_back((n * 977 + 1030) % vocabulary);
  loss.logits(ctx, frozen.loss, frozen.model, r.y, r.logits);
  loss.each(ctx, frozen.loss, frozen.model, r.y, labels, r.each);
  return r;
}

}  // namespace

TEST_CASE("freeze: a quantised output layer multiplies rounded weights and items") {
  for (const bool tied : {false, true}) {
    const std::vector<float> w = output_of(tied);
    Cpu::Context ctx(1);
    const auto params = made<Cpu>(ctx, loss_of(tied));
    for (const Weights form : {Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4})
      for (const Index rows : {Index(1), Index(3)}) {
        const Result<Cpu> got = computed<Cpu>(loss_of(tied), {.weights = form}, rows, 1);
        int wrong = 0;
        for (Index n = 0; n < rows; ++n) {
          std::vector<double> z;
          for (Index v = 0; v < vocabulary; ++v) {
            const auto x = [&](Index k) { return got.y(n, k); };
            const auto weight = [&](Index k) { return w[std::size_t(v * dim + k)]; };
            naive::QuantisedSum sum;
            if (is_quantised(form))
              sum = naive::quantised_dot(form, dim, x, weight);
            else
              for (Index k = 0; k < dim; ++k) {
                sum.value += double(x(k)) * double(naive::bf16(double(weight(k))));
                sum.magnitude += std::abs(double(x(k)) * double(weight(k)));
              }
            // A sum is rounded once for each of 300 terms, or four times for each group of 32 terms, and for the bias.
            const double terms = is_quantised(form) ? 4 * (double(dim) / 32 + 2) : double(dim) + 2;
            const double bias = double(params.loss.bias(v));
            z.push_back(sum.value + bias);
            wrong +=
                !(std::abs(double(got.logits(n, v)) - z.back()) <= 0x1p-24 * terms * (sum.magnitude + std::abs(bias)));
          }
          // The losses read the same weights, in blocks of the vocabulary.
          const double top = *std::max_element(z.begin(), z.end());
          double total = 0;
          for (const double v : z) total += std::exp(v - top);
          const double expected = top + std::log(total) - z[std::size_t((n * 977 + 1030) % vocabulary)];
          wrong += !(std::abs(double(got.each(n)) - expected) <= 1e-4);
        }
        CAPTURE(tied);
        CAPTURE(int(form));
        CAPTURE(rows);
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("freeze: an unchanged or excluded output layer keeps its bits") {
  for (const bool tied : {false, true}) {
    Cpu::Context ctx(1);
    const auto loss = loss_of(tied);
    const auto params = made<Cpu>(ctx, loss);
    const Result<Cpu> unchanged = computed<Cpu>(loss, {}, 5, 1);
    const Result<Cpu> excluded =
        computed<Cpu>(loss, {.weights = Weights::int8, .except = {{"loss.weight", Weights::unchanged}}}, 5, 1);
    Tensor<float, 2, Cpu> z(5, vocabulary);
    loss.logits(ctx, params.loss, params.model, unchanged.y, z);
    CHECK(same_bits(unchanged.logits, z, z.size()));
    CHECK(same_bits(excluded.logits, z, z.size()));
  }
}

TEST_CASE("freeze: threads, other rows and CpuBf16 give the same logits") {
  for (const Weights form : {Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4}) {
    const Result<Cpu> one = computed<Cpu>(loss_of(false, false), {.weights = form}, 9, 1);
    const Result<Cpu> three = computed<Cpu>(loss_of(false, false), {.weights = form}, 9, 3);
    const Result<CpuBf16> rounded = computed<CpuBf16>(loss_of(false, false), {.weights = form}, 9, 2);
    CAPTURE(int(form));
    CHECK(same_bits(three.logits, one.logits, one.logits.size()));
    CHECK(same_bits(three.each, one.each, one.each.size()));
    CHECK(same_bits(rounded.logits, one.logits, one.logits.size()));
    const Result<Cpu> first = computed<Cpu>(loss_of(false, false), {.weights = form}, 1, 2);
    REQUIRE(same_bits(first.y, one.y, dim));
    CHECK(same_bits(first.logits, one.logits, vocabulary));
  }
}

TEST_CASE("freeze: a frozen loss changes no bit of the model") {
  Cpu::Context ctx(1);
  const FreezeOptions options{.weights = Weights::int4, .except = {{"**.down", Weights::int8}}};
  const auto frozen = freeze(ctx, made<Cpu>(ctx, loss_of(true)), options);
  const auto alone = freeze(ctx, init_params<float, Cpu>(layers(), ctx, Seed{1}), options);
  const std::vector<Index> ids{3, 1, 4};
  Carry<decltype(layers()), float, Cpu> carry;
  Tensor<float, 2, Cpu> y(3, dim), expected(3, dim);
  infer(layers(), ctx, frozen.model, ids, carry, y);
  infer(layers(), ctx, alone, ids, carry, expected);
  CHECK(same_bits(y, expected, y.size()));
}

TEST_CASE("freeze: patterns for a decoder must select a tensor") {
  Cpu::Context ctx(1);
  const auto error = message_of([&] {
    freeze(ctx, made<Cpu>(ctx, loss_of(false)), {.weights = Weights::int8, .except = {{"lm_head", Weights::int4}}});
  });
  CHECK(error.find("freeze: ") == 0);
  CHECK(error.find("lm_head") != std::string::npos);
}
