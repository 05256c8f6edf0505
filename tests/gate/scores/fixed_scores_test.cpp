#include "gatefold/gate/scores/fixed_scores.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/scores/cosine_scores.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class ScoresT>
auto mixture(const ScoresT& scores) {
  return Mixture{ComposedGate<ScoresT, Independent, TopK>{.scores = scores}, Linear{.model_dim = 4}};
}

}  // namespace

TEST_CASE("Fixed (1): equals its scores; parameter gradients stay 0") {
  Cpu::Context ctx(1);
  for (const Index length : {1, 2}) {
    CAPTURE(length);
    const LinearScores scores{.experts = 5, .length = length};
    auto free = pass<double>(ctx, mixture(scores), 6);
    auto frozen = pass<double>(ctx, mixture(FixedScores{scores}), 6);
    free.forward();
    frozen.forward();
    free.backward();
    frozen.backward();
    CHECK(same_bits(values(free.y, free.dx), values(frozen.y, frozen.dx)));
    CHECK(same_bits(values(free.grads.branch.expert), values(frozen.grads.branch.expert)));
    CHECK(difference(values(frozen.dx), std::vector<double>(24, 0)) > 0);
    for (const double g : values(frozen.grads.branch.gate)) CHECK(g == 0);
    bool learns = false;
    for (const double g : values(free.grads.branch.gate)) learns = learns || g != 0;
    CHECK(learns);
  }
}

TEST_CASE("Fixed: AdamW with weight decay does not change the weights") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx,
                  mixture(FixedScores{{.experts = 3}}),
                  MeanSquaredError{},
                  optim::AdamW{.lr = 0.1, .decay = 0.5},
                  Seed{1},
                  Element<double>{}};
  const auto gate = values(trainer.params.branch.gate), expert = values(trainer.params.branch.expert);
  REQUIRE(gate.size() == 4 * 3 + 3);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 8, 4), target = uniform_tensor<double>(ctx, Seed{3}, 1, 8, 4);
  for (int i = 0; i < 3; ++i) trainer.step(x, target);
  CHECK(same_bits(gate, values(trainer.params.branch.gate)));
  CHECK_FALSE(same_bits(expert, values(trainer.params.branch.expert)));
}

TEST_CASE("Fixed: gradients and conformance") {
  const auto report = check::conformance<Cpu>(mixture(FixedScores{{.experts = 3}}), {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Fixed: has the parameter names and options of its scores") {
  Cpu::Context ctx(1);
  const FixedScores scores{{.length = 2}};
  const auto filled = with_experts(with_model_dim(scores, 6), 4);
  CHECK(filled.experts() == 4);
  CHECK(filled.scores.model_dim == 3);
  auto p = filled.init<double, Cpu>(ctx, Seed{1});
  CHECK(same_bits(values(p), values(filled.scores.init<double, Cpu>(ctx, Seed{1}))));
  std::string names;
  for_each_tensor([&](const Name& name, const auto&) { names += name.str() + " "; }, p);
  CHECK(names == "weight bias ");
  int learned = 0;
  for_each_learned([&](const Name&, const auto&) { ++learned; }, p);
  CHECK(learned == 0);
  p.scores.bias.resize(1);
  CHECK(message_of([&] { filled.validate(p); }) == "LinearScores: params.bias: expected [4], got [1]");
}

TEST_CASE("Fixed: cosine scores can be fixed too") {
  Cpu::Context ctx(1);
  const Fixed<CosineScores> scores{{.model_dim = 4, .experts = 3}};
  const auto p = scores.init<double, Cpu>(ctx, Seed{1});
  auto grads = zeros_like(ctx, p);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 4), dz = uniform_tensor<double>(ctx, Seed{3}, 1, 5, 3);
  auto dx = constant_tensor<double>(ctx, 0, 5, 4), expected = constant_tensor<double>(ctx, 0, 5, 4);
  scores.backward(ctx, p, x, dz, dx, grads);
  for (const double g : values(grads)) CHECK(g == 0);
  auto of_base = zeros_like(ctx, p.scores);
  scores.scores.backward(ctx, p.scores, x, dz, expected, of_base);
  CHECK(same_bits(values(dx), values(expected)));
}
