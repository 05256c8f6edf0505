#include "gatefold/gate/scores/linear_scores.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/scores/cosine_scores.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("LinearScores (1): computes an affine map of items and sequences") {
  Cpu::Context ctx(1);
  for (const auto& [length, bias] : {std::pair<Index, bool>{1, true}, {3, true}, {3, false}})
    for (const Index experts : {1, 4, 257}) {
      const LinearScores scores{.model_dim = 5, .experts = experts, .length = length, .bias = bias};
      const auto p = scores.init<double, Cpu>(ctx, Seed{1});
      const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, length * 5);
      Tensor<double, 2, Cpu> z(7, experts);
      scores.forward(ctx, p, x, z);
      std::vector<double> expected;
      for (Index n = 0; n < 7; ++n)
        for (Index e = 0; e < experts; ++e) {
          double sum = bias ? p.bias(e) : 0;
          for (Index l = 0; l < length; ++l)
            for (Index d = 0; d < 5; ++d) sum += x(n, l * 5 + d) * p.weight(d, e);
          expected.push_back(sum);
        }
      CHECK(difference(values(z), expected) <= 1e-14);
    }
}

TEST_CASE("LinearScores: gradients equal finite differences and are added") {
  Cpu::Context ctx(1);
  for (const auto& [length, bias] : {std::pair<Index, bool>{1, true}, {3, true}, {3, false}}) {
    const LinearScores scores{.model_dim = 5, .experts = 4, .length = length, .bias = bias};
    auto p = scores.init<double, Cpu>(ctx, Seed{1});
    auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, length * 5);
    const auto dz = uniform_tensor<double>(ctx, Seed{3}, 1, 7, 4);
    auto dx = constant_tensor<double>(ctx, 1, 7, length * 5);
    auto grads = zeros_like(ctx, p);
    for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), 1); }, grads);
    scores.backward(ctx, p, x, dz, dx, grads);
    for (auto* t : {&dx, &grads.weight})
      for (Index i = 0; i < t->size(); ++i) t->data()[i] -= 1;
    for (Index i = 0; i < grads.bias.size(); ++i) grads.bias(i) -= 1;
    const auto report = check::compare_gradients(
        {{"x", x.data(), dx.data(), x.size()},
         {"weight", p.weight.data(), grads.weight.data(), p.weight.size()},
         {"bias", p.bias.data(), grads.bias.data(), p.bias.size()}},
        [&] {
          Tensor<double, 2, Cpu> z(7, 4);
          scores.forward(ctx, p, x, z);
          double f = 0;
          for (Index i = 0; i < z.size(); ++i) f += z.data()[i] * dz.data()[i];
          return f;
        },
        [] { return 0; }, {});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("LinearScores: gradients and conformance with items that are sequences") {
  const auto report = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.scores = {.experts = 3, .length = 2}, .selection = {.k = 2}}, Linear{.model_dim = 6}},
      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("LinearScores: starts as U(±1/√D); the seed fixes the numbers") {
  Cpu::Context ctx(1);
  const LinearScores scores{.model_dim = 400, .experts = 50};
  const auto p = scores.init<float, Cpu>(ctx, Seed{1}), same = scores.init<float, Cpu>(ctx, Seed{1}),
             other = scores.init<float, Cpu>(ctx, Seed{2});
  CHECK(same_bits(values(p), values(same)));
  CHECK_FALSE(same_bits(values(p), values(other)));
  double largest = 0, mean = 0, square = 0;
  for (const double v : values(p.weight)) {
    largest = support::larger(largest, std::abs(v));
    mean += v / 20000;
    square += v * v / 20000;
  }
  CHECK(largest <= 0.05);
  CHECK(largest >= 0.0499);
  CHECK(std::abs(mean) <= 0.001);  // five standard deviations, as for the next check
  CHECK(square == doctest::Approx(0.05 * 0.05 / 3).epsilon(0.032).scale(0));
  CHECK(p.bias.size() == 50);
}

TEST_CASE("LinearScores: a zero router without bias scores all experts equally") {
  Cpu::Context ctx(1);
  const LinearScores scores{.model_dim = 5, .experts = 4, .bias = false, .initial = Initial::zero()};
  const auto p = scores.init<double, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, 5);
  Tensor<double, 2, Cpu> z(7, 4);
  scores.forward(ctx, p, x, z);
  CHECK(values(z) == std::vector<double>(28, 0.0));
  CHECK(p.bias.size() == 0);
  const LinearScores shared{.model_dim = 5, .experts = 4, .initial = {.shared = true}};
  CHECK(message_of([&] { (void)shared.init<double, Cpu>(ctx, Seed{1}); }) ==
        "Initial: shared: expected false for weights of rank 2, which have no extent of experts, got true");
}

TEST_CASE("LinearScores: deduces the model dimension; a conflict throws") {
  CHECK(LinearScores{.experts = 2}.with_model_dim(6).model_dim == 6);
  CHECK(LinearScores{.experts = 2, .length = 3}.with_model_dim(6).model_dim == 2);
  CHECK(LinearScores{.model_dim = 6, .experts = 2}.with_model_dim(6).model_dim == 6);
  CHECK(message_of([] { (void)LinearScores{.model_dim = 5, .experts = 2}.with_model_dim(6); }) ==
        "LinearScores: model_dim: expected 6 (the width of the items), got 5");
  CHECK(message_of([] { (void)LinearScores{.experts = 2, .length = 4}.with_model_dim(6); }) ==
        "LinearScores: length: expected a divisor of the items' width 6, got 4");
  CHECK(message_of([] { (void)LinearScores{.experts = 2, .length = 0}.with_model_dim(6); }) ==
        "LinearScores: length: expected at least 1, got 0");
}

TEST_CASE("LinearScores: length 0 throws in a gate without experts") {
  Cpu::Context ctx(1);
  SoftmaxTopK gate{.scores = {.model_dim = 2, .experts = 3}, .selection = {.k = 1}};
  const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
  gate.scores.length = 0;
  CHECK(message_of([&] { (void)init_params<float, Cpu>(gate, ctx, Seed{1}); }) ==
        "LinearScores.init: length: expected at least 1, got 0");
  Plan<SoftmaxTopK, float, Cpu> plan;
  Saved<SoftmaxTopK, float, Cpu> saved;
  CHECK(message_of([&] { gate.forward(ctx, params, Tensor<float, 2, Cpu>(4, 3), plan, saved); }) ==
        "LinearScores: length: expected at least 1, got 0");
}

TEST_CASE("LinearScores: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)LinearScores{.experts = 2}.init<float, Cpu>(ctx, {}); }) ==
        "LinearScores.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)LinearScores{.model_dim = 2}.init<float, Cpu>(ctx, {}); }) ==
        "LinearScores.init: experts: expected at least 1, got 0");
  const LinearScores scores{.model_dim = 2, .experts = 3};
  auto p = scores.init<float, Cpu>(ctx, {});
  p.weight.resize(2, 4);
  CHECK(message_of([&] { scores.validate(p); }) == "LinearScores: params.weight: expected [2, 3], got [2, 4]");
  p.weight.resize(2, 3);
  p.bias.resize(1);
  CHECK(message_of([&] { scores.validate(p); }) == "LinearScores: params.bias: expected [3], got [1]");
}

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
  const auto report =
      check::conformance<Cpu, double>(mixture(FixedScores{{.experts = 3}}), {.items_are_independent = true});
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

TEST_CASE("Fixed: cosine scores get gradients of x, not of parameters") {
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
