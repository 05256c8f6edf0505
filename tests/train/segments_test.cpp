// A Trainer on a stream that is cut into segments. Attention remembers earlier segments.

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/relative_attention.hpp"
#include "gatefold/layer/relative_keys.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4, sequences = 8, length = 2, window = 5, ago = 3;
const RelativeAttention attention{.model_dim = dim, .heads = 1, .window = window};
const RelativeKeys model{window, dim, NoResidual{PreNorm{LayerNorm{}, attention}}};

struct Outcome {
  double loss = 0;  // mean of the last steps
  std::vector<double> params;
};
/// Trains a model to return the item three positions earlier, with segments of two items. This is possible only with
/// memory of earlier segments.
Outcome learn(int threads, bool remembers, Index steps, double dropout = 0) {
  Cpu::Context ctx(threads, true);
  RelativeKeys of = model;
  of.layer.branch.branch.dropout = dropout;
  Trainer trainer{ctx, of, MeanSquaredError{}, optim::AdamW{.lr = 1e-2, .decay = 0}, Seed{42}};
  SegmentMemory<float, Cpu> memory(ctx, {.sequences = sequences, .width = dim, .most = attention.remembers()});
  Tensor<float, 2, Cpu> x(sequences * length, dim), target(sequences * length, dim);
  Outcome outcome;
  for (Index s = 0; s < steps; ++s) {
    // An item is (a, −a, b, −b) with random a and b of ±1/2, so that LayerNorm loses no information.
    const auto item = [&](Index g, Index t, Index d) {
      if (t < 0) return 0.f;
      const bool plus = uniform<float>(Seed{7}, std::uint64_t(g), std::uint64_t(t * 2 + d / 2)) < 0.5f;
      return plus == (d % 2 == 0) ? 0.5f : -0.5f;
    };
    for (Index g = 0; g < sequences; ++g)
      for (Index t = 0; t < length; ++t)
        for (Index d = 0; d < dim; ++d) {
          x(g * length + t, d) = item(g, s * length + t, d);
          target(g * length + t, d) = item(g, s * length + t - ago, d);
        }
    typename decltype(trainer)::Extra extra{.length = length, .noise = {Random{Seed{5}, std::uint64_t(s)}}};
    if (remembers) extra.memory = memory.of(length);
    const double loss = trainer.step(x, target, extra);
    memory.advance();
    if (s >= steps - 50) outcome.loss += loss / 50;
  }
  outcome.params = values(trainer.params);
  return outcome;
}

}  // namespace

TEST_CASE("segments: a Trainer learns from earlier segments") {
  const double variance = 0.25;
  CHECK(learn(1, true, 1500).loss < 0.05 * variance);
  CHECK(learn(1, false, 300).loss > 0.9 * variance);
}

TEST_CASE("segments: the number of threads changes no bit, with dropout") {
  const auto first = learn(1, true, 60, 0.3).params;
  for (const int threads : {2, 3}) CHECK(same_bits(learn(threads, true, 60, 0.3).params, first));
}
