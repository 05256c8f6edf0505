#include "gatefold/train/input_gradient.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/papers/pgd.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/allocations.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index items = 6, width = 5, classes = 3;
const std::vector<Index> labels{0, 2, 1, 1, 0, 2};
auto inputs(Cpu::Context& ctx) { return uniform_tensor<double>(ctx, Seed{3}, 1, items, width); }

}  // namespace

TEST_CASE("InputGradient (1): a linear model equals the closed form") {
  Cpu::Context ctx(1);
  const Linear model{.model_dim = width, .output_dim = classes};
  InputGradient gradient{ctx, model, CrossEntropy{}, Element<double>{}};
  const auto params = init_params<double, Cpu>(as_layer<double, Cpu>(model), ctx, Seed{1});
  const auto before = values(params);
  const auto x = inputs(ctx);
  auto dx = constant_tensor<double>(ctx, 77, items, width);
  for (int again = 0; again < 2; ++again) {  // it overwrites dx
    gradient(params, x, labels, dx);
    const auto& expert = params.branch.expert;
    for (Index n = 0; n < items; ++n) {
      double p[classes], total = 0;
      for (Index c = 0; c < classes; ++c) {
        double z = expert.bias(0, c);
        for (Index d = 0; d < width; ++d) z += x(n, d) * expert.weight(0, d, c);
        total += p[c] = std::exp(z);
      }
      for (Index d = 0; d < width; ++d) {
        double expected = 0;
        for (Index c = 0; c < classes; ++c)
          expected += (p[c] / total - (labels[std::size_t(n)] == c ? 1 : 0)) / items * expert.weight(0, d, c);
        CHECK(dx(n, d) == doctest::Approx(expected).epsilon(1e-12));
      }
    }
  }
  CHECK(same_bits(values(params), before));
}

TEST_CASE("InputGradient (1): momentum and learned loss equal finite differences") {
  Cpu::Context ctx(1);
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = 3}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 5}}};
  const Mixture mixture{gate, Mlp<Gelu>{.model_dim = width, .hidden_dim = 4}};
  const Chain model{Residual{update::HeavyBall{}, mixture}, Residual{update::HeavyBall{}, mixture}};
  Trainer trainer{ctx,
                  model,
                  StreamedCrossEntropy{.vocabulary = classes, .model_dim = width},
                  optim::Sgd{.lr = 0},
                  Seed{5},
                  Element<double>{}};
  InputGradient gradient{ctx, model, trainer.loss, Element<double>{}};
  auto x = inputs(ctx);
  Tensor<double, 2, Cpu> dx(items, width);
  gradient(trainer.params, x, labels, dx);
  for (Index i = 0; i < x.size(); ++i) {
    const double v = x.data()[i], h = 1e-5;
    x.data()[i] = v + h;
    const double more = trainer.evaluate(x, labels);
    x.data()[i] = v - h;
    const double less = trainer.evaluate(x, labels);
    x.data()[i] = v;
    CHECK(dx.data()[i] == doctest::Approx((more - less) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("InputGradient: an attack raises the loss, more with more steps") {
  Cpu::Context ctx(1);
  const Chain model{Mlp<Gelu>{.model_dim = width, .hidden_dim = 16}, Linear{.model_dim = width, .output_dim = classes}};
  Trainer trainer{ctx, model, CrossEntropy{}, optim::Sgd{.lr = 0.5}, Seed{1}, Element<double>{}};
  const auto x = inputs(ctx);
  for (int s = 0; s < 300; ++s) trainer.step(x, labels);
  InputGradient gradient{ctx, model, CrossEntropy{}, Element<double>{}};
  Tensor<double, 2, Cpu> y(items, width);
  const auto attacked = [&](const Pgd& attack) {
    attack(
        ctx, [&](View<const double, 2, Cpu> at, View<double, 2, Cpu> d) { gradient(trainer.params, at, labels, d); },
        x.view(), Noise{}, y);
    return trainer.evaluate(y, labels);
  };
  const double clean = trainer.evaluate(x, labels);
  const double once = attacked({.epsilon = 0.4, .step = 0.4, .steps = 1, .low = -2, .high = 2});
  const double often = attacked({.epsilon = 0.4, .step = 0.05, .steps = 30, .low = -2, .high = 2});
  CHECK(once > 2 * clean);
  CHECK(often > once);
}

TEST_CASE("InputGradient: an attack allocates only for the first batch") {
  Cpu::Context ctx(2);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = width, .hidden_dim = 4}};
  const Residual model{update::HeavyBall{}, mixture};
  InputGradient gradient{ctx, model, CrossEntropy{}, Element<double>{}};
  const auto params = init_params<double, Cpu>(model, ctx, Seed{1});
  const auto x = inputs(ctx);
  Tensor<double, 2, Cpu> y(items, width);
  int taken = 0;
  for (int call = 0; call < 4; ++call) {
    const int before = support::allocations;
    Pgd{.low = -1}(
        ctx, [&](View<const double, 2, Cpu> at, View<double, 2, Cpu> d) { gradient(params, at, labels, d); }, x.view(),
        Noise{Random{Seed{2}}}, y);
    if (call > 0) taken += support::allocations - before;
  }
  CHECK(taken == 0);
}

TEST_CASE("InputGradient: wrong shapes throw before any write") {
  Cpu::Context ctx(1);
  const Linear model{.model_dim = width, .output_dim = classes};
  InputGradient gradient{ctx, model, CrossEntropy{}, Element<double>{}};
  const auto params = init_params<double, Cpu>(as_layer<double, Cpu>(model), ctx, Seed{1});
  const auto x = inputs(ctx);
  Tensor<double, 2, Cpu> dx(items, width), narrow(items, width - 1);
  CHECK(message_of([&] { gradient(params, narrow, labels, dx); }) == "InputGradient: x: expected [?, 5], got [6, 4]");
  CHECK(message_of([&] { gradient(params, x, labels, narrow); }) == "InputGradient: dx: expected [6, 5], got [6, 4]");
  const std::vector<Index> few{1, 2};
  CHECK(message_of([&] { gradient(params, x, few, dx); }) ==
        "InputGradient: x and target: expected the same number of items, got 6 and 2");
}
