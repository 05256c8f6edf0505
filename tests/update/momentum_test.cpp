#include "gatefold/update/momentum.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A rule that computes update::look_ahead with all of its coefficients.
struct Ahead {
  double mu = 0.6, gamma = 0.8, ahead = 0.3;
  template <class T, class B>
  using Carry = update::Momentum<Ahead, T, B>;
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> point;
  };
  template <class T, class B>
  void begin(typename B::Context& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.begin(ctx, items, dim);
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.point.resize(x.extent(0), x.extent(1));
    update::look_ahead(ctx, mu, gamma, ahead, x, f, carry.p.view(), y, saved.point.view());
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>&) const {
    update::look_ahead_backward(ctx, mu, gamma, ahead, saved.point, df, dy, dcarry.p.view(), dx);
  }
};

}  // namespace

TEST_CASE("momentum (1): look-ahead momentum accumulates over four layers") {
  Cpu::Context ctx(1);
  for (const Ahead& rule : {Ahead{}, Ahead{.mu = -0.4, .gamma = 1.5, .ahead = -0.7}}) {
    Numbers momentum(12, 0);
    auto p = follow(ctx, rule, [&](int, const Numbers& x, const Evaluate& u) {
      momentum = rule.mu * momentum + u(x + rule.ahead * momentum);
      return x + rule.gamma * momentum;
    });
    CHECK(difference(values(p.carry), momentum) <= 1e-14);
  }
}

TEST_CASE("momentum: a look-ahead of 0 equals HeavyBall") {
  Cpu::Context ctx(1);
  auto ahead = pass<double>(ctx, Stack{Residual{Ahead{.mu = 0.7, .gamma = 1, .ahead = 0}, Swirl{}}, 3}, 3);
  auto ball = pass<double>(ctx, Stack{Residual{update::HeavyBall{}, Swirl{}}, 3}, 3);
  ahead.forward();
  ball.forward();
  CHECK(same_bits(values(ahead.y, ahead.carry), values(ball.y, ball.carry)));
}

TEST_CASE("momentum: look-ahead gradients reach x, carry and branch") { keeps_its_promises(Ahead{}); }

TEST_CASE("momentum: a Chain keeps one state for each rule") {
  static_assert(!std::is_same_v<Carry<Ahead, double, Cpu>, Carry<update::HeavyBall, double, Cpu>>);
  Cpu::Context ctx(1);
  const Residual ball{update::HeavyBall{}, Swirl{}}, other{update::HeavyBall{.mu = 0.2}, Swirl{}};
  auto p = pass<double>(ctx, Chain{ball, Residual{Ahead{}, Swirl{}}, Residual{update::Plain{}, Swirl{}}, other}, 3);
  p.forward();
  const Numbers x = values(p.x);
  const auto w = [&](auto layer) { return values(std::get<decltype(layer)::value>(p.params.layers).branch); };
  const Numbers first = swirl(w(std::integral_constant<std::size_t, 0>{}), x);
  const Numbers x1 = x + first;
  const Numbers q = swirl(w(std::integral_constant<std::size_t, 1>{}), x1), x2 = x1 + 0.8 * q;
  const Numbers x3 = x2 + swirl(w(std::integral_constant<std::size_t, 2>{}), x2);
  const Numbers last = 0.2 * first + swirl(w(std::integral_constant<std::size_t, 3>{}), x3);
  CHECK(difference(values(p.y), x3 + last) <= 1e-14);
  CHECK(difference(values(std::get<Carry<update::HeavyBall, double, Cpu>>(p.carry.states)), last) <= 1e-14);
  CHECK(difference(values(std::get<Carry<Ahead, double, Cpu>>(p.carry.states)), q) <= 1e-14);
}

TEST_CASE("InnerProduct, RowInnerProduct: sum over all elements, over each row") {
  Cpu::Context ctx(2);
  const auto a = matrix<double>({{1, 2, 3}, {-1, 0, 2}}), b = matrix<double>({{2, 0.5, 1}, {4, 7, -3}});
  double total = 100;  // reduce adds to this value
  Cpu::reduce<double>(ctx, a.size(), functor::InnerProduct<double>{a.data(), b.data()}, &total);
  CHECK(total == 100 + 6 - 10);
  auto rows = constant_tensor<double>(ctx, quiet_nan, 2);
  Cpu::for_rows(ctx, 2, functor::RowInnerProduct<double, Cpu>{a, b, rows});
  CHECK(values(rows) == std::vector<double>{6, -10});
  const auto large = matrix<float>({{1e20, -1e20}});  // their squares overflow float
  Cpu::for_rows(ctx, 1, functor::RowInnerProduct<float, Cpu, double>{large, large, rows});
  CHECK(rows(0) == rounded(2.0 * 1e20f * 1e20f));
  total = 0;
  Cpu::reduce<double>(ctx, 2, functor::InnerProduct<float, double>{large.data(), large.data()}, &total);
  CHECK(total == rounded(2.0 * 1e20f * 1e20f));
}

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
    const auto report = check::conformance<Cpu, double>(layer, {.items_are_independent = true});
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

TEST_CASE("Nesterov (1): equals the paper's form, over four layers") {
  Cpu::Context ctx(1);
  const double mu = 0.6, gamma = 1.5;
  Numbers momentum(12, 0);
  auto p = follow(ctx, update::Nesterov{.mu = mu, .gamma = gamma}, [&](int, const Numbers& x, const Evaluate& u) {
    momentum = gamma * u(x + -mu * momentum) + mu * momentum;
    return x + momentum;
  });
  CHECK(difference(gamma * values(p.carry), momentum) <= 1e-14);
}

TEST_CASE("Nesterov (1): classical() equals a step from the extrapolated point") {
  Cpu::Context ctx(1);
  const double mu = 0.6, gamma = 1.5;
  Numbers before;
  follow(ctx, update::Nesterov::classical(mu, gamma), [&](int t, const Numbers& x, const Evaluate& u) {
    const Numbers z = t == 1 ? x : x + mu * (x + -1.0 * before);
    before = x;
    return z + gamma * u(z);
  });
}

TEST_CASE("Nesterov: a carry of another batch throws") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::Nesterov{}, Swirl{}}, 4}, 3);
  p.carry.p.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "Nesterov: carry.p: expected [3, 4], got [2, 4]");
  CHECK(p.untouched());
}

TEST_CASE("Nesterov: gradients and conformance of default and classical form") {
  keeps_its_promises(update::Nesterov{});
  keeps_its_promises(update::Nesterov::classical(0.5, 0.8));
}

TEST_CASE("Nesterov: NaN or infinite coefficients throw") {
  CHECK(refusal(update::Nesterov{.mu = quiet_nan}) == "Nesterov: mu: expected a finite number, got nan");
  CHECK(refusal(update::Nesterov{.gamma = infinity}) == "Nesterov: gamma: expected a finite number, got inf");
}
