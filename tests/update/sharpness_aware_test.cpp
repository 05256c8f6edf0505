#include "gatefold/update/sharpness_aware.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/rounded.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("SharpnessAware (1): normalises the step of each item") {
  Cpu::Context ctx(1);
  follow(ctx, update::SharpnessAware{.rho = 0.4, .gamma = 0.8}, [](int, const Numbers& x, const Evaluate& evaluate) {
    const Numbers u = evaluate(x);
    Numbers z = x;
    for (std::size_t n = 0; n < 3; ++n) {
      double squares = 0;
      for (std::size_t d = 0; d < 4; ++d) squares += u[4 * n + d] * u[4 * n + d];
      for (std::size_t d = 0; d < 4; ++d) z[4 * n + d] -= 0.4 * u[4 * n + d] / std::sqrt(squares);
    }
    return x + 0.8 * evaluate(z);
  });
}

TEST_CASE("SharpnessAware (1): the norm can cover the whole batch") {
  Cpu::Context ctx(1);
  const update::SharpnessAware rule{.rho = 0.7, .norm = update::Norm::batch};
  follow(ctx, rule, [](int, const Numbers& x, const Evaluate& evaluate) {
    const Numbers u = evaluate(x);
    double squares = 0;
    for (const double v : u) squares += v * v;
    return x + evaluate(x + -0.7 / std::sqrt(squares) * u);
  });
}

TEST_CASE_TEMPLATE("SharpnessAware: u(x) = 0 gives finite outputs and gradients", T, float, double) {
  Cpu::Context ctx(1);
  for (const update::Norm norm : {update::Norm::item, update::Norm::batch}) {
    auto p = pass<T>(ctx, Stack{Residual{update::SharpnessAware{.norm = norm}, Swirl{}}, 2}, 3);
    for (Index d = 0; d < 4; ++d) p.x(1, d) = 0;  // sin 0
    p.forward();
    p.backward();
    for (Index d = 0; d < 4; ++d) CHECK(p.y(1, d) == 0);
    for (const double v : values(p.y, p.dx, p.grads)) CHECK(std::isfinite(v));
    set_zero(ctx, p.params);
    p.forward();
    p.backward();
    CHECK(values(p.y) == values(p.x));
    for (const double v : values(p.dx, p.grads)) CHECK(std::isfinite(v));
  }
}

TEST_CASE("SharpnessAware (1): works if squared lengths underflow or overflow") {
  Cpu::Context ctx(1);
  for (const update::Norm norm : {update::Norm::item, update::Norm::batch})
    for (const float length : {1e-23f, 1e20f}) {
      const update::SharpnessAware rule{.rho = 0.5, .norm = norm};
      Nothing<float, Cpu> none;
      Saved<update::SharpnessAware, float, Cpu> saved;
      const auto x = matrix<float>({{1, 2}}), dy = matrix<float>({{1, 1}});
      Tensor<float, 2, Cpu> y(1, 2);
      rule.forward(ctx, none, x, none,
                   support::with_steps<float>(ctx, [&](View<const float, 2, Cpu>, View<float, 2, Cpu> u,
                                                       int) { u(0, 0) = 3 * length, u(0, 1) = -4 * length; }),
                   y, saved);
      CHECK(saved.point(0, 0) == rounded<float>(1 - 0.5 * 0.6));
      CHECK(saved.point(0, 1) == rounded<float>(2 + 0.5 * 0.8));
      auto dx = matrix<float>({{0, 0}});
      std::vector<double> du;  // −ρ (dz − n ⟨n, dz⟩)/‖u‖, dz = (1, 0)
      rule.backward(
          ctx, none, x, saved,
          [&](View<const float, 2, Cpu>, View<const float, 2, Cpu> d, View<float, 2, Cpu> dpoint, int call) {
            call == 1 ? void(dpoint(0, 0) = 1) : void(du = {double(d(0, 0)), double(d(0, 1))});
          },
          dy, none, dx, none);
      const double scale = -0.5 / (5. * double(length));
      CHECK(du[0] / scale == rounded<float>(1 - 0.6 * 0.6));
      CHECK(du[1] / scale == rounded<float>(0.8 * 0.6));
    }
}

TEST_CASE_TEMPLATE("SharpnessAware (1): too short directions are ignored, without NaN", T, float, double) {
  Cpu::Context ctx(1);
  // The smallest normal float, or the root of the smallest normal double.
  const double least = sizeof(T) == 4 ? 1.17549435e-38 : 1.4916681462400413e-154;
  for (const update::Norm norm : {update::Norm::item, update::Norm::batch})
    for (const double length : {least * 4, least / 16, double(std::numeric_limits<T>::denorm_min())}) {
      CAPTURE(length);
      const update::SharpnessAware rule{.rho = 0.5, .norm = norm};
      Nothing<T, Cpu> none;
      Saved<update::SharpnessAware, T, Cpu> saved;
      const auto x = matrix<T>({{1, 2}}), dy = matrix<T>({{1, 1}});
      Tensor<T, 2, Cpu> y(1, 2);
      rule.forward(ctx, none, x, none,
                   support::with_steps<T>(ctx, [&](View<const T, 2, Cpu>, View<T, 2, Cpu> u,
                                                   int) { u(0, 0) = T(3 * length), u(0, 1) = T(-4 * length); }),
                   y, saved);
      const bool counts = length > least;
      const double epsilon = sizeof(T) == 4 ? 1e-6 : 1e-14;  // some 4 roundings of 2^-24 or 2^-53
      CHECK(saved.point(0, 0) == doctest::Approx(counts ? 1 - 0.5 * 0.6 : 1).epsilon(epsilon));
      CHECK(saved.point(0, 1) == doctest::Approx(counts ? 2 + 0.5 * 0.8 : 2).epsilon(epsilon));
      auto dx = matrix<T>({{0, 0}});
      std::vector<double> du;
      rule.backward(
          ctx, none, x, saved,
          [&](View<const T, 2, Cpu>, View<const T, 2, Cpu> d, View<T, 2, Cpu> dpoint, int call) {
            call == 1 ? void(dpoint(0, 0) = 1) : void(du = {double(d(0, 0)), double(d(0, 1))});
          },
          dy, none, dx, none);
      for (const double v : du) CHECK((counts ? std::isfinite(v) && v != 0 : v == 0));
    }
}

TEST_CASE("SharpnessAware: a negative rho throws before any write") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::SharpnessAware{.rho = -1}, Swirl{}}, 2}, 3);
  CHECK(message_of([&] { p.forward(); }) == "SharpnessAware: rho: expected at least 0, got -1");
  CHECK(p.untouched());
  auto nan = pass<double>(ctx, Stack{Residual{update::SharpnessAware{.gamma = quiet_nan}, Swirl{}}, 2}, 3);
  CHECK(message_of([&] { nan.forward(); }) == "SharpnessAware: gamma: expected a finite number, got nan");
}

TEST_CASE("SharpnessAware: passes the conformance checks with either norm") {
  keeps_its_promises(update::SharpnessAware{.rho = 0.3, .gamma = 0.8});
  keeps_its_promises(update::SharpnessAware{.rho = 0.5, .norm = update::Norm::batch}, {});
}
