#include "gatefold/update/sharpness_aware.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("SharpnessAware (1): z = x − ρ u/‖u‖, y = x + γ u(z), the norm each item's, in loops over four layers") {
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

TEST_CASE("SharpnessAware (1): the norm of the whole batch") {
  Cpu::Context ctx(1);
  const update::SharpnessAware rule{.rho = 0.7, .norm = update::Norm::batch};
  follow(ctx, rule, [](int, const Numbers& x, const Evaluate& evaluate) {
    const Numbers u = evaluate(x);
    double squares = 0;
    for (const double v : u) squares += v * v;
    return x + evaluate(x + -0.7 / std::sqrt(squares) * u);
  });
}

TEST_CASE_TEMPLATE("SharpnessAware: u(x) = 0 gives finite outputs and gradients, for an item or for all", T, float, double) {
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

TEST_CASE("SharpnessAware: a rho below 0 says so before anything is written") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::SharpnessAware{.rho = -1}, Swirl{}}, 2}, 3);
  CHECK(message_of([&] { p.forward(); }) == "SharpnessAware: rho: expected at least 0, got -1");
  CHECK(p.untouched());
}

TEST_CASE("SharpnessAware: gradients and promises through four layers, with either norm") {
  keeps_its_promises(update::SharpnessAware{.rho = 0.3, .gamma = 0.8});
  keeps_its_promises(update::SharpnessAware{.rho = 0.5, .norm = update::Norm::batch}, {});
}
