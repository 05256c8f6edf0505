#include "gatefold/update/momentum.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/update/heavy_ball.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A rule that is the recursion with all of its coefficients.
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

TEST_CASE("momentum: without look-ahead it equals HeavyBall") {
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

TEST_CASE("InnerProduct, RowInnerProduct: sums over everything, and over each row") {
  Cpu::Context ctx(2);
  const auto a = matrix<double>({{1, 2, 3}, {-1, 0, 2}}), b = matrix<double>({{2, 0.5, 1}, {4, 7, -3}});
  double total = 100;  // reduce adds
  Cpu::reduce<double>(ctx, a.size(), functor::InnerProduct<double>{a.data(), b.data()}, &total);
  CHECK(total == 100 + 6 - 10);
  auto rows = constant_tensor<double>(ctx, quiet_nan, 2);
  Cpu::for_rows(ctx, 2, functor::RowInnerProduct<double, Cpu>{a, b, rows});
  CHECK(values(rows) == std::vector<double>{6, -10});
  const auto large = matrix<float>({{1e20, -1e20}});  // whose squares no float holds
  Cpu::for_rows(ctx, 1, functor::RowInnerProduct<float, Cpu, double>{large, large, rows});
  CHECK(rows(0) == rounded(2.0 * 1e20f * 1e20f));
  total = 0;
  Cpu::reduce<double>(ctx, 2, functor::InnerProduct<float, double>{large.data(), large.data()}, &total);
  CHECK(total == rounded(2.0 * 1e20f * 1e20f));
}
