#include "gatefold/policy/options.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/auxiliary/load.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

/// Returns the message of the error that a first pass throws.
template <class L>
std::string refusal(const L& layer) {
  Cpu::Context ctx(1);
  return support::message_of([&] {
    auto p = support::pass<float>(ctx, layer, 4);
    p.forward();
    FAIL("not refused");
  });
}
template <class Loss>
auto mixture(const Loss& loss) {
  return Mixture{WithAuxiliary<SoftmaxTopK, Loss>{.scores = {.experts = 3}, .auxiliary = {loss}},
                 Linear{.model_dim = 4}};
}

}  // namespace

TEST_CASE("policies: numbers that make every output NaN are refused") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refusal(mixture(Balance{.weight = nan})) == "Balance: weight: expected a finite number, got nan");
  CHECK(refusal(mixture(ZLoss{.weight = -infinity})) == "ZLoss: weight: expected a finite number, got -inf");
  CHECK(refusal(mixture(GShard{.weight = infinity})) == "GShard: weight: expected a finite number, got inf");
  CHECK(refusal(mixture(Importance{.weight = nan})) == "Importance: weight: expected a finite number, got nan");
  CHECK(support::message_of([&] { Load{.weight = nan}.validate(3); }) ==
        "Load: weight: expected a finite number, got nan");
  CHECK(refusal(mixture(Importance{.cv = {.epsilon = infinity}})) ==
        "Importance: cv.epsilon: expected a finite number, got inf");
  const Linear linear{.model_dim = 4};
  CHECK(refusal(WithShared{OneExpert{linear}, linear, nan}) == "WithShared: weight: expected a finite number, got nan");
  CHECK(refusal(Mixture{SoftMoe{.count = 2, .epsilon = -1}, linear}) ==
        "SoftMoe.init: epsilon: expected more than 0, got -1");
  CHECK(refusal(Mixture{SoftMoe{.count = 2, .epsilon = infinity}, linear}) ==
        "SoftMoe.init: epsilon: expected a finite number, got inf");
  CHECK(refusal(OneExpert{RmsNorm{.model_dim = 4, .epsilon = infinity}}) ==
        "RmsNorm.init: epsilon: expected a finite number, got inf");
  CHECK(refusal(OneExpert{LayerNorm{.model_dim = 4, .epsilon = infinity}}) ==
        "LayerNorm.init: epsilon: expected a finite number, got inf");
  using Cosine = ComposedGate<CosineScores, Independent, TopK>;
  CHECK(refusal(Mixture{Cosine{.scores = {.experts = 3, .epsilon = 0}}, linear}) ==
        "CosineScores: epsilon: expected more than 0, got 0");
  CHECK(refusal(Mixture{Cosine{.scores = {.experts = 3, .temperature = infinity}}, linear}) ==
        "CosineScores: temperature: expected a finite number, got inf");
}

TEST_CASE("expect_finite: numbers pass; NaN and infinities throw") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_NOTHROW(expect_finite("Rule", "mu", -1e308));
  CHECK_THROWS_WITH_AS(expect_finite("Rule", "mu", infinity), "Rule: mu: expected a finite number, got inf",
                       ArgumentError);
  CHECK_THROWS_AS(expect_finite("Rule", "mu", -infinity), ArgumentError);
  CHECK_THROWS_AS(expect_finite("Rule", "mu", std::numeric_limits<double>::quiet_NaN()), ArgumentError);
}

TEST_CASE("fill_model_dim: accepts 0 or the same width") {
  CHECK(fill_model_dim(Linear{.output_dim = 3}, "Linear", 8).model_dim == 8);
  CHECK(fill_model_dim(Linear{.model_dim = 8}, "Linear", 8).model_dim == 8);
  CHECK(fill_model_dim(RmsNorm{.epsilon = 0.5}, "RmsNorm", 8).epsilon == 0.5);
  CHECK_THROWS_WITH_AS(fill_model_dim(Linear{.model_dim = 4}, "Linear", 8),
                       "Linear: model_dim: expected 8 (the width of the items), got 4", ArgumentError);
  CHECK_THROWS_WITH_AS(fill_model_dim(RmsNorm{.model_dim = 4}, "RmsNorm", 8, "branch"),
                       "RmsNorm: model_dim: expected 8 (the width of the branch), got 4", ArgumentError);
}

// tests/backend/initial_values_test.cpp tests the values that these options give.

TEST_CASE("Initial: presets name their law; torch.nn.Linear is the default") {
  CHECK(Initial{}.law == Initial::Law::fan_in);
  CHECK(Initial{}.scale == 1);
  CHECK_FALSE(Initial{}.shared);
  CHECK(Initial::reference().law == Initial::Law::reference);
  CHECK(Initial::normal(0.3).law == Initial::Law::normal);
  CHECK(Initial::normal(0.3).scale == 0.3);
  CHECK(Initial::zero().law == Initial::Law::zero);
}
