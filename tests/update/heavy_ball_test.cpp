#include "gatefold/update/heavy_ball.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture() {
  return PreNorm{LayerNorm{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                      Mlp<Gelu>{.model_dim = 6, .hidden_dim = 5}}};
}

}  // namespace

TEST_CASE("HeavyBall (1): momentum accumulates over three layers") {
  Cpu::Context ctx(1);
  for (const auto& rule : {update::HeavyBall{}, update::HeavyBall{.mu = 0.3, .gamma = 2},
                           update::HeavyBall{.mu = -0.5, .gamma = 0.25}, update::HeavyBall{.mu = 0, .gamma = 1}}) {
    Nothing<double, Cpu> none;
    Carry<update::HeavyBall, double, Cpu> carry;
    rule.begin(ctx, 4, 3, carry);
    auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3);
    std::vector<double> stream = values(x), momentum(12, 0);
    for (int layer = 0; layer < 3; ++layer) {
      const auto u = uniform_tensor<double>(ctx, Seed{2}.fork(std::uint64_t(layer)), 1, 4, 3);
      auto y = constant_tensor<double>(ctx, quiet_nan, 4, 3);
      int calls = 0;
      rule.forward(
          ctx, none, x, carry,
          support::with_steps<double>(ctx,
                                      [&](View<const double, 2, Cpu> point, View<double, 2, Cpu> out, int call) {
                                        CHECK(call == calls++);
                                        CHECK(point.data() == x.data());
                                        copy(ctx, u, out);
                                      }),
          y, none);
      CHECK(calls == 1);
      for (std::size_t i = 0; i < 12; ++i) {
        momentum[i] = rule.mu * momentum[i] + u.data()[i];
        stream[i] += rule.gamma * momentum[i];
      }
      CHECK(difference(values(carry.p), momentum) <= 1e-15);
      CHECK(difference(values(y), stream) <= 12 * 8 * 0x1p-53);  // three layers with four roundings of numbers up to 8
      copy(ctx, y, x.view());
    }
  }
}

TEST_CASE("HeavyBall: a unit step moves the output by γ Σμ^l") {
  // A branch with weights 0, so that u = b everywhere.
  Cpu::Context ctx(1);
  auto p = pass<double>(
      ctx, Stack{Residual{update::HeavyBall{.mu = 0.5, .gamma = 0.8}, OneExpert{Linear{.model_dim = 1}}}, 4}, 1);
  set_zero(ctx, p.params);
  p.params.layers[0].branch.expert.bias(0, 0) = 1;
  p.forward();
  CHECK(p.y(0, 0) - p.x(0, 0) == doctest::Approx(0.8 * (1 + 0.5 + 0.25 + 0.125)).epsilon(1e-15));
  CHECK(p.carry.p(0, 0) == 0.125);
}

TEST_CASE("HeavyBall: negative mu reverses the momentum in every layer") {
  Cpu::Context ctx(1);
  auto p = pass<double>(
      ctx, Stack{Residual{update::HeavyBall{.mu = -0.5, .gamma = 2}, OneExpert{Linear{.model_dim = 1}}}, 4}, 1);
  set_zero(ctx, p.params);
  p.params.layers[0].branch.expert.bias(0, 0) = 1;
  p.forward();
  CHECK(p.y(0, 0) - p.x(0, 0) == doctest::Approx(2 * (1 - 0.5 + 0.25 - 0.125)).epsilon(1e-15));
  CHECK(p.carry.p(0, 0) == -0.125);
}

TEST_CASE_TEMPLATE("HeavyBall: mu = 0 and gamma = 1 equals Plain", T, float, double) {
  Cpu::Context ctx(2);
  auto ball = pass<T>(ctx, Stack{Residual{update::HeavyBall{.mu = 0, .gamma = 1}, mixture()}, 3}, 20);
  auto plain = pass<T>(ctx, Stack{Residual{update::Plain{}, mixture()}, 3}, 20);
  ball.forward();
  plain.forward();
  ball.backward();
  plain.backward();
  // Compares up to the sign of zero, because 0 + −0 is 0.
  const auto unsigned_zero = [](std::vector<double> all) {
    for (double& v : all) v += 0.0;
    return all;
  };
  const auto outcome = [&](auto& p) { return unsigned_zero(values(p.y, p.dx, p.grads)); };
  CHECK(same_bits(outcome(ball), outcome(plain)));
  // Another rule gives other values.
  auto other = pass<T>(ctx, Stack{Residual{update::HeavyBall{.mu = 0.5, .gamma = 1}, mixture()}, 3}, 20);
  other.forward();
  CHECK(difference(values(other.y), values(plain.y)) > 0.01);
}

TEST_CASE("HeavyBall: begin sets a zero momentum of x's shape") {
  Cpu::Context ctx(1);
  Carry<update::HeavyBall, float, Cpu> carry;
  carry.p = constant_tensor<float>(ctx, 5, 9, 9);
  update::HeavyBall{}.begin(ctx, 4, 3, carry);
  CHECK(carry.p.extent(0) == 4);
  CHECK(carry.p.extent(1) == 3);
  for (const double v : values(carry)) CHECK(v == 0);
}

TEST_CASE("HeavyBall: a carry of another batch throws") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Residual{update::HeavyBall{}, mixture()}, 5);
  p.carry.p.resize(4, 6);
  fill(ctx, p.carry.p.view(), 3);
  CHECK(message_of([&] { p.forward(); }) == "HeavyBall: carry.p: expected [5, 6], got [4, 6]");
  CHECK(p.untouched());
  CHECK(values(p.carry) == std::vector<double>(24, 3));
  auto forgotten = pass<float>(ctx, Residual{update::HeavyBall{}, mixture()}, 5);
  forgotten.carry = {};
  CHECK(message_of([&] { forgotten.forward(); }) == "HeavyBall: carry.p: expected [5, 6], got [0, 0]");
}

TEST_CASE("HeavyBall: gradients and conformance around every kind of branch") {
  const auto of = [](const auto& layer) {
    const auto report = check::conformance<Cpu>(layer, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  };
  const Mlp<Gelu> mlp{.model_dim = 4, .hidden_dim = 5};
  of(Residual{update::HeavyBall{}, OneExpert{mlp}});
  of(Residual{update::HeavyBall{.mu = 0.9, .gamma = 1.5}, mixture()});
  of(Residual{update::HeavyBall{.mu = -0.4, .gamma = 0.5}, mixture()});
  of(Stack{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1}, mixture()}, 3});
}

TEST_CASE("HeavyBall: NaN or infinite coefficients throw") {
  CHECK(refusal(update::HeavyBall{.mu = quiet_nan}) == "HeavyBall: mu: expected a finite number, got nan");
  CHECK(refusal(update::HeavyBall{.gamma = -infinity}) == "HeavyBall: gamma: expected a finite number, got -inf");
}
