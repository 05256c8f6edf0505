#include "gatefold/update/adam.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/rounded.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// One layer whose branch returns u = `given` for every x: its output y, and the adjoint du of u for dy = 1.
template <class T>
struct Alone {
  std::vector<double> y, du;
  Alone(const update::Adam& rule, double x, const std::vector<double>& given) {
    Cpu::Context ctx(1);
    const Index n = static_cast<Index>(given.size());
    Nothing<T, Cpu> none;
    Carry<update::Adam, T, Cpu> carry, dcarry;
    Saved<update::Adam, T, Cpu> saved;
    for (auto* c : {&carry, &dcarry}) rule.begin(ctx, 1, n, *c);
    const auto in = constant_tensor<T>(ctx, x, 1, n), dy = constant_tensor<T>(ctx, 1, 1, n);
    auto out = constant_tensor<T>(ctx, quiet_nan, 1, n), dx = constant_tensor<T>(ctx, 0, 1, n);
    rule.forward(ctx, none, in, carry,
                 support::with_steps<T>(ctx,
                                        [&](View<const T, 2, Cpu>, View<T, 2, Cpu> u, int) {
                                          for (Index i = 0; i < n; ++i)
                                            u(0, i) = static_cast<T>(given[static_cast<std::size_t>(i)]);
                                        }),
                 out, saved);
    rule.backward(
        ctx, none, in, saved,
        [&](View<const T, 2, Cpu>, View<const T, 2, Cpu> d, View<T, 2, Cpu>, int) {
          du.assign(d.data(), d.data() + n);
        },
        dy, dcarry, dx, none);
    y = values(out);
  }
};

}  // namespace

TEST_CASE("Adam (1), (2), (3): moments accumulate over four layers") {
  Cpu::Context ctx(1);
  const auto loops = [&](const update::Adam& rule) {
    Numbers p(12, 0), v(12, 0);
    auto run = follow(ctx, rule, [&](int t, const Numbers& x, const Evaluate& evaluate) {
      const Numbers u = evaluate(x);
      p = rule.beta1 * p + (1 - rule.beta1) * u;
      v = rule.beta2 * v + (1 - rule.beta2) * each([](double a) { return a * a; }, u);
      const double c1 = rule.bias_correction ? 1 - std::pow(rule.beta1, t) : 1;
      const double c2 = rule.bias_correction ? 1 - std::pow(rule.beta2, t) : 1;
      return each(
          [&](double xi, double pi, double vi) {
            const double root =
                rule.epsilon_inside ? std::sqrt(vi / c2 + rule.epsilon) : std::sqrt(vi / c2) + rule.epsilon;
            return xi + rule.gamma * (pi / c1) / root - rule.kappa * xi;
          },
          x, p, v);
    });
    CHECK(difference(values(run.carry.p), p) <= 1e-14);
    CHECK(difference(values(run.carry.v), v) <= 1e-14);
  };
  loops({.beta1 = 0.5, .beta2 = 0.8, .gamma = 0.3, .kappa = 0.2, .epsilon = 0.1});
  loops({.beta1 = 0.6, .beta2 = 0.9, .gamma = 0.5, .epsilon = 0.05, .bias_correction = true});
  loops({.epsilon = 0.01, .epsilon_inside = true});
}

TEST_CASE("Adam: reference({…}) keeps given options and sets the rest") {
  const update::Adam adam = update::Adam::reference({.beta1 = 0.5, .epsilon = 1e-3});
  CHECK(adam.beta1 == 0.5);
  CHECK(adam.epsilon == 1e-3);
  CHECK(adam.kappa == 1);
  CHECK(adam.epsilon_inside);
}

TEST_CASE("Adam: reference() sets three options; y depends only on u") {
  const update::Adam reference = update::Adam::reference();
  CHECK(reference.epsilon_inside);
  CHECK_FALSE(reference.bias_correction);
  CHECK(reference.kappa == 1);
  CHECK(reference.epsilon == 1e-8);
  const std::vector<double> u{0.5, -2, 1e-3, 4.6e-4};
  const Alone<double> here(reference, 0.3, u), there(reference, -70, u), paper(update::Adam{}, 0.3, u);
  CHECK(here.y == there.y);
  for (std::size_t i = 0; i < u.size(); ++i)
    CHECK(here.y[i] == doctest::Approx(0.1 * u[i] / std::sqrt(0.001 * u[i] * u[i] + 1e-8)).epsilon(1e-13));
  // The last u is as small as the output of a newly initialised branch of the reference code. The step for this u is
  // small if ε is inside the root, but not if ε is outside.
  CHECK(here.y[3] == doctest::Approx(0.455).epsilon(1e-3));        // 0.455 has 3 digits
  CHECK(paper.y[3] - 0.3 == doctest::Approx(3.16).epsilon(1e-3));  // ε / (√0.001 u) = 7e-4
}

TEST_CASE("Adam: tiny ε makes the first layer proportional to sign(u)") {
  const std::vector<double> u{0.5, -2, 0.1, -1};
  const Alone<double> first(update::Adam{}, 0, u), corrected(update::Adam{.bias_correction = true}, 0, u);
  for (std::size_t i = 0; i < u.size(); ++i) {
    // The expected values have no ε. Their relative errors are:
    CHECK(first.y[i] ==
          doctest::Approx(std::copysign(0.1 / std::sqrt(0.001), u[i])).epsilon(1e-5));  // ε / (√0.001 |u|)
    CHECK(corrected.y[i] == doctest::Approx(std::copysign(1, u[i])).epsilon(1e-6));     // ε / |u|
    CHECK(std::abs(first.du[i]) < 1e-4);  // about 100 ε / u²: hardly any gradient passes
  }
}

TEST_CASE("Adam (2): the first layer's small float gradient is exact") {
  for (const double u : {1e-4, -0.3, 1.0, 10.0, -30.0, 1e3}) {
    const double s = std::sqrt(0.001) * std::abs(u), r = s + 1e-8, inside = std::sqrt(s * s + 1e-8);
    const double outer = Alone<float>(update::Adam{}, 0, {u}).du[0],
                 inner = Alone<float>(update::Adam::reference(), 0, {u}).du[0];
    CHECK(outer == doctest::Approx(0.1 * 1e-8 / (r * r)).epsilon(16 * 0x1p-24));  // 16 roundings of floats
    CHECK(inner == doctest::Approx(0.1 * 1e-8 / (inside * inside * inside)).epsilon(16 * 0x1p-24));  // likewise
  }
}

TEST_CASE_TEMPLATE("Adam: u² = 0 gives finite outputs and gradients", T, float, double) {
  const std::vector<double> u{0, -0.0, 1e-30, -1e-200, 1e-25};
  for (const update::Adam& rule : {update::Adam{}, update::Adam::reference(), update::Adam{.bias_correction = true}}) {
    const Alone<T> zero(rule, 0, u);
    CHECK(zero.y[0] == 0);
    for (std::size_t i = 0; i < u.size(); ++i) {
      CHECK(std::isfinite(zero.y[i]));
      CHECK(std::isfinite(zero.du[i]));
    }
  }
  CHECK(Alone<T>(update::Adam{}, 0, u).du[0] == rounded<T>(0.1 / 1e-8));
}

TEST_CASE("Adam: wrong options or carry throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const update::Adam& rule, Index items) {
    auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 4}, 3);
    p.carry.v.resize(items, 4);
    const auto message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(says({.epsilon = 0}, 3) == "Adam: epsilon: expected more than 0, got 0");
  CHECK(says({.beta1 = 1}, 3) == "Adam: beta1: expected 0 <= beta1 < 1, got 1");
  CHECK(says({.beta2 = -0.5}, 3) == "Adam: beta2: expected 0 <= beta2 < 1, got -0.5");
  CHECK(says({}, 2) == "Adam: carry.v: expected [3, 4], got [2, 4]");
}

TEST_CASE("Adam: gradients and conformance with a large ε") {
  keeps_its_promises(update::Adam{.beta1 = 0.5, .beta2 = 0.8, .kappa = 0.2, .epsilon = 0.3});
  keeps_its_promises(update::Adam{.epsilon = 0.1, .epsilon_inside = true});
  keeps_its_promises(update::Adam{.beta1 = 0.5, .beta2 = 0.8, .gamma = 0.5, .epsilon = 0.2, .bias_correction = true});
}

TEST_CASE("Adam: NaN or infinite coefficients throw") {
  CHECK(refusal(update::Adam{.epsilon = std::numeric_limits<double>::infinity()}) ==
        "Adam: epsilon: expected a finite number, got inf");
  CHECK(refusal(update::Adam{.gamma = quiet_nan}) == "Adam: gamma: expected a finite number, got nan");
  CHECK(refusal(update::Adam{.kappa = quiet_nan}) == "Adam: kappa: expected a finite number, got nan");
}
