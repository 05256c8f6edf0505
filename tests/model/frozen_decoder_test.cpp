#include "gatefold/model/frozen_decoder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"
#include "support/quantised.hpp"

using namespace gatefold;
using support::message_of;

namespace {

// More than one block of the vocabulary in StreamedCrossEntropy, and two blocks of the depth of a product.
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

/// The logits and the losses of some outputs of the model.
template <class B>
struct Result {
  Tensor<float, 2, B> y, logits;
  Tensor<float, 1, B> each;
};
/// Computes the logits and losses with a frozen decoder of `threads` threads, which share even short work.
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

TEST_CASE("freeze: logits of a quantised output layer equal plain loops") {
  for (const bool tied : {false, true}) {
    const std::vector<float> w = output_of(tied);
    Cpu::Context ctx(1);
    const auto params = made<Cpu>(ctx, loss_of(tied));
    for (const Weights form : {Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4})
      for (const Index rows : {Index(1), Index(7)}) {
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
            // A float is rounded once for each of at most 300 terms, or four times for each group and for the bias.
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

TEST_CASE("freeze: the model of a decoder equals the model frozen alone") {
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
