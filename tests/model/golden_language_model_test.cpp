// Loss and gradients of language models of every layout against PyTorch: tests/golden/models.py.

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/metric/perplexity.hpp"
#include "gatefold/model/language_model.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index sequences = 2, length = 4;
const LanguageSizes sizes{.vocabulary = 8, .model_dim = 4, .heads = 2, .window = 3, .depth = 2};
const Mlp<Relu> expert{.model_dim = 4, .hidden_dim = 2};
const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, expert};

std::vector<double> of(View<const double, 2, Cpu> rows) { return {rows.data(), rows.data() + rows.size()}; }

/// One step of a Trainer has the loss and the gradients of the case, and the output layer its probabilities, of which
/// the mean and the metric make one perplexity.
template <class ModelT>
void check(Golden& g, const ModelT& model, Index zeros = 0) {
  CAPTURE(g.name);
  Cpu::Context ctx(2);
  Trainer trainer{ctx, model, sizes.loss(), optim::Sgd{.lr = 0}, Seed{1}, Element<double>{}};
  g.read("params", trainer.params);
  SegmentMemory<double, Cpu> memory(
      ctx, {.layers = 2 * sizes.depth, .sequences = sequences, .width = sizes.model_dim, .most = sizes.window});
  memory.begin(ctx, zeros);
  Segment<double, Cpu> segment{.length = length};
  if (zeros > 0) segment.memory = memory.of(length);
  const auto extra = extra_of<typename decltype(trainer)::Extra>(segment);
  const auto ids = g.indices("ids"), target = g.indices("target");

  const double loss = trainer.step(ids, target, extra);
  g.compare("value", std::vector<double>{loss});
  g.compare("h", of(trainer.output()));
  g.compare("grads", trainer.grads);

  const auto& [of_model, of_output] = trainer.params;
  Tensor<double, 2, Cpu> log_p(sequences * length, sizes.vocabulary);
  Tensor<double, 1, Cpu> each(sequences * length);
  sizes.loss().log_probabilities(ctx, of_output, of_model, trainer.output(), log_p);
  g.compare("log_probabilities", values(log_p));
  sizes.loss().each(ctx, of_output, of_model, trainer.output(), target, each);
  double mean = 0;
  for (Index n = 0; n < each.size(); ++n) mean += each(n) / static_cast<double>(each.size());
  const double perplexity = metric::perplexity(ctx, log_p.view(), target);
  CHECK(std::exp(mean) == doctest::Approx(perplexity).epsilon(1e-13));
  CHECK(std::exp(g.values("value")[0]) == doctest::Approx(perplexity).epsilon(1e-10));
  g.flag("pairs");
  CHECK(g.unread() == "");
}

}  // namespace

TEST_CASE("golden: language models of both layouts, plain and with momentum, and in the form of the code") {
  for (Golden& g : Golden::read_all("model/language")) {
    // Plain is heavy ball without momentum, to the bit (tests/update), and compiles once with it.
    const double sign = g.name == "glam_heavy_ball_reference" ? -1 : 1;
    const update::HeavyBall rule{.mu = g.option("mu"), .gamma = sign * g.option("gamma")};
    if (sign < 0) {
      check(g, glam_model<language::Reference>(sizes, rule, mixture, expert), sizes.window);
    } else if (g.flag("pairs")) {
      check(g, glam_model(sizes, rule, mixture, expert));
    } else {
      check(g, switch_model(sizes, rule, mixture));
    }
  }
}
