// Steps of a RoutedTrainer, whose router and experts learn from two losses, compared with PyTorch:
// tests/golden/trainers.py.

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gatefold/expert/attention_expert.hpp"
#include "gatefold/expert/patch_cnn.hpp"
#include "gatefold/expert/patch_mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/routed_trainer.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index kModel = 3, kLength = 2, kExperts = 3;

std::vector<double> numbers(View<const double, 2, Cpu> v) { return {v.data(), v.data() + v.size()}; }

/// Compares all steps of a case with the file. target(case, name) returns the labels of a step.
template <class M, class L, class F>
void trainer_agrees(Golden& g, const M& mixture, const L& loss, bool weighted, F&& target) {
  Cpu::Context ctx(2);
  RoutedTrainer run{ctx, mixture, loss, Seed{1}, weighted, Element<double>{}};
  g.read("params", run.params);
  const optim::Sgd descent{.lr = g.option("lr")};
  auto state = descent.begin(ctx, run.params);
  Extra<M, double, Cpu> extra;
  const auto seed = static_cast<std::uint64_t>(g.option("seed"));
  for (Index step = 1; step <= g.extent("steps"); ++step) {
    CAPTURE(step);
    const std::string t = std::to_string(step) + ".";
    extra.selection.random = Random{Seed{seed}, static_cast<std::uint64_t>(step)};
    const auto x = g.matrix(t + "x");
    const auto labels = target(g, t + "target");
    const auto losses = run.gradients(x, labels, extra);
    g.compare(t + "losses", {losses.router, losses.experts});
    g.compare(t + "y", numbers(run.output()));
    g.compare(t + "f", numbers(run.expert_output()));
    g.compare(t + "grads", run.grads);
    descent.step(ctx, run.params, run.grads, state);
    g.compare(t + "params", run.params);
  }
  CHECK(g.unread() == "");
}

}  // namespace

TEST_CASE("golden: RoutedTrainer of papers 000 and 003 equals PyTorch") {
  const auto signs = [](Golden& g, const std::string& name) { return g.matrix(name); };
  const auto labels = [](Golden& g, const std::string& name) { return g.indices(name); };
  for (Golden& g : Golden::read_all("train/routed_trainer")) {
    CAPTURE(g.name);
    if (g.name == "transformers") {
      trainer_agrees(g,
                     Mixture{SoftmaxNoisyTop1{.scores = {.experts = kExperts, .length = kLength, .bias = false}},
                             AttentionExpert{.model_dim = kModel, .length = kLength}},
                     Logistic{}, false, signs);
    } else if (g.name == "patches") {
      trainer_agrees(g,
                     Mixture{PatchNoisyTop1{.scores = {.experts = kExperts, .length = kLength}},
                             PatchMlp<Cubic>{.model_dim = kModel, .patches = kLength, .filters = 2}},
                     Logistic{}, true, signs);
    } else {
      REQUIRE(g.name == "classes");
      trainer_agrees(
          g,
          Mixture{SoftmaxNoisyTop1{.scores = {.experts = kExperts, .length = kLength}},
                  PatchCnn<Cubic>{.model_dim = kModel, .patches = kLength, .filters = 2, .outputs = 2, .bias = true}},
          CrossEntropy{}, false, labels);
    }
  }
}
