#include "gatefold/update/first.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/update/adam.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/robust.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const update::Adam adam{.beta1 = 0.5, .beta2 = 0.8, .gamma = 0.6, .kappa = 0.1, .epsilon = 0.3};
const update::HeavyBall ball{.mu = 0.6, .gamma = 0.9};

Numbers adam_alone(const Numbers& x, const Numbers& u) {
  return each([](double xi, double ui) { return 0.9 * xi + 0.6 * 0.5 * ui / (std::sqrt(0.2 * ui * ui) + 0.3); }, x, u);
}

/// Computes y = x + u with a step that is called with an index only.
struct ByIndex {
  template <class T, class B, class F>
  void forward(auto&, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    f(x, y, 0, [from = x.data(), to = y.data()](Index i) { to[i] += from[i]; });
  }
  template <class T, class B, class F>
  void backward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df, In<T, 2, B> dy,
                Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    add(ctx, dy, dx);
    df(x, dy, dx, 0);
  }
};

}  // namespace

TEST_CASE("First (1): layer 1 uses one rule, later layers another") {
  Cpu::Context ctx(1);
  Numbers momentum(12, 0);
  auto p = follow(ctx, update::First{adam, ball, false}, [&](int t, const Numbers& x, const Evaluate& u) {
    if (t == 1) return adam_alone(x, u(x));
    momentum = 0.6 * momentum + u(x);
    return x + 0.9 * momentum;
  });
  CHECK(difference(values(p.carry.rest), momentum) <= 1e-14);
  CHECK(p.carry.layer == 4);
}

TEST_CASE("First (2): with `warm`, layer 1 updates both rules' states") {
  Cpu::Context ctx(1);
  Numbers momentum(12, 0);
  auto p = follow(ctx, update::First{adam, ball}, [&](int t, const Numbers& x, const Evaluate& u) {
    momentum = 0.6 * momentum + u(x);
    return t == 1 ? adam_alone(x, u(x)) : x + 0.9 * momentum;
  });
  CHECK(difference(values(p.carry.rest), momentum) <= 1e-14);
}

TEST_CASE("First (2): warm works with nonzero momentum and any step") {
  const auto check = [](const auto& first, double gain) {
    Cpu::Context ctx(1);
    auto p = pass<double>(ctx, Residual{update::First{first, ball}, Swirl{}}, 3);
    auto u = pass<double>(ctx, Swirl{}, 3);
    copy_pack(ctx, p.params.branch, u.params.branch);
    copy(ctx, p.x, u.x.view());
    u.forward();
    fill(ctx, p.carry.rest.p.view(), 2);
    p.forward();
    for (Index i = 0; i < p.x.size(); ++i) {
      CHECK(p.y.data()[i] == doctest::Approx(p.x.data()[i] + gain * u.y.data()[i]).epsilon(1e-15));
      CHECK(p.carry.rest.p.data()[i] == doctest::Approx(0.6 * 2 + u.y.data()[i]).epsilon(1e-15));
    }
  };
  check(update::Plain{}, 1);
  check(ball, 0.9);
  check(ByIndex{}, 1);
}

TEST_CASE("First: Adam::reference() and HeavyBall equal the reference code") {
  Cpu::Context ctx(1);
  Numbers m(12, 0);
  const update::First rule{update::Adam::reference(), update::HeavyBall{}};
  follow(ctx, rule, [&](int t, const Numbers& h, const Evaluate& u) {
    const Numbers c = -1.0 * u(h);
    m = 0.7 * m + c;
    if (t > 1) return h + -1.0 * m;
    return each(
        [](double hi, double ci) {
          const double p = (1 - 0.9) * ci, v = (1 - 0.999) * ci * ci;
          return hi - (p / std::sqrt(v + 1e-8) + hi);
        },
        h, c);
  });
}

TEST_CASE("First: each layer evaluates the branch and its backward once") {
  Cpu::Context ctx(1);
  const update::First rule{adam, ball};
  using Rule = update::First<update::Adam, update::HeavyBall>;
  Params<Rule, double, Cpu> params, grads;
  Carry<Rule, double, Cpu> carry, dcarry;
  rule.begin(ctx, 3, 4, carry);
  rule.begin(ctx, 3, 4, dcarry);
  fill(ctx, dcarry.rest.p.view(), 10);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 3, 4), u = uniform_tensor<double>(ctx, Seed{2}, 1, 3, 4);
  auto y = constant_tensor<double>(ctx, quiet_nan, 3, 4), dx = constant_tensor<double>(ctx, 0, 3, 4);
  const auto dy = constant_tensor<double>(ctx, 0, 3, 4);
  for (int layer = 0; layer < 2; ++layer) {
    Saved<Rule, double, Cpu> saved;
    int calls = 0, adjoints = 0;
    rule.forward(ctx, params, x, carry,
                 support::with_steps<double>(ctx,
                                             [&](View<const double, 2, Cpu> point, View<double, 2, Cpu> out, int call) {
                                               CHECK(call == calls++);
                                               CHECK(point.data() == x.data());
                                               copy(ctx, u, out);
                                             }),
                 y, saved);
    rule.backward(
        ctx, params, x, saved,
        [&](View<const double, 2, Cpu>, View<const double, 2, Cpu> du, View<double, 2, Cpu>, int call) {
          CHECK(call == adjoints++);
          // With dy = 0 only the momentum gives u an adjoint: 10 at first, then μ times that.
          for (Index i = 0; i < 12; ++i) CHECK(du.data()[i] == doctest::Approx(layer == 0 ? 10 : 6).epsilon(1e-15));
        },
        dy, dcarry, dx, grads);
    CHECK(calls == 1);
    CHECK(adjoints == 1);
  }
}

TEST_CASE("First: warm with a rule that evaluates twice throws") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::First{ball, update::SharpnessAware{}}, Swirl{}}, 3}, 3);
  CHECK(message_of([&] { p.forward(); }) ==
        "First: warm: expected false, because a rule that evaluates its branch more than once has no single u to "
        "share, got true");
  CHECK(p.untouched());
  follow(
      ctx, update::First{ball, update::SharpnessAware{.rho = 0}, false},
      [](int t, const Numbers& x, const Evaluate& u) { return x + (t == 1 ? 0.9 : 1) * u(x); }, 3);
}

TEST_CASE("First: checks the options and carries of both rules") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{update::First{adam, ball}, Swirl{}}, 3);
  p.carry.rest.p.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "HeavyBall: carry.p: expected [3, 4], got [2, 4]");
  p.carry.first.v.resize(2, 4);
  CHECK(message_of([&] { p.forward(); }) == "Adam: carry.v: expected [3, 4], got [2, 4]");
  CHECK(p.untouched());
}

TEST_CASE("First: gradients and conformance, warm and cold") {
  keeps_its_promises(update::First{adam, ball});
  keeps_its_promises(update::First{adam, ball, false});
  keeps_its_promises(update::First{ball, adam});
}

TEST_CASE("First (2): warm ignores the later rule's y") {
  Cpu::Context ctx(1);
  Numbers p(12, 0), v(12, 0);
  auto all = follow(ctx, update::First{ball, adam}, [&](int t, const Numbers& x, const Evaluate& evaluate) {
    const Numbers u = evaluate(x);
    p = 0.5 * p + 0.5 * u;
    v = 0.8 * v + 0.2 * each([](double ui, double) { return ui * ui; }, u, u);
    if (t == 1) return x + 0.9 * u;
    const Numbers step = each([](double pi, double vi) { return 0.6 * pi / (std::sqrt(vi) + 0.3); }, p, v);
    return 0.9 * x + step;
  });
  CHECK(difference(values(all.carry.rest.p), p) <= 1e-14);
}

TEST_CASE("First (2): warm ignores a look-ahead in the first layer") {
  Cpu::Context ctx(1);
  const update::First rule{ball, update::Robust{.p = 0.5, .k = 2}};
  const auto report = check::gradients(ctx, Stack{Residual{rule, Swirl{}}, 3});
  CHECK_MESSAGE(report, report.str());
}
