#include "gatefold/papers/jacobian.hpp"

#include <doctest/doctest.h>

#include <array>
#include <complex>
#include <vector>

#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Returns ∂y/∂x at the only item of p by central differences.
template <class P>
std::vector<double> differences(P& p) {
  const Index out = p.y.extent(1), in = p.x.extent(1);
  std::vector<double> j(static_cast<std::size_t>(out * in));
  const double h = 1e-5;
  for (Index i = 0; i < in; ++i) {
    const double at = p.x(0, i);
    for (const double sign : {1.0, -1.0}) {
      p.x(0, i) = at + sign * h;
      p.layer.begin(p.ctx, p.params, 1, p.carry);
      p.forward();
      for (Index o = 0; o < out; ++o) j[static_cast<std::size_t>(o * in + i)] += sign * p.y(0, o) / (2 * h);
    }
    p.x(0, i) = at;
  }
  return j;
}

auto mixture(double balance) {
  return Mixture{WithAuxiliary<SoftmaxTopK, Balance>{
                     .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = balance}}},
                 Mlp<Gelu>{.model_dim = 3, .hidden_dim = 5}};
}

}  // namespace

TEST_CASE("jacobian (1): a linear branch gives its weight, transposed") {
  Cpu::Context ctx(1);
  const OneExpert linear{Linear{.model_dim = 3, .output_dim = 2}};
  const auto params = linear.init<float, Cpu>(ctx, Seed{1});
  const auto x = matrix<float>({{1, -2, 3}});
  const auto j = jacobian(ctx, linear, params, x.view());
  REQUIRE(j.extent(0) == 2);
  REQUIRE(j.extent(1) == 3);
  for (Index o = 0; o < 2; ++o)
    for (Index i = 0; i < 3; ++i) CHECK(j(o, i) == params.expert.weight(0, i, o));
}

TEST_CASE("jacobian (1): equals central differences, without auxiliary losses") {
  Cpu::Context ctx(1);
  const auto branch = mixture(100);
  auto alone = pass<double>(ctx, branch, 1);
  // The error of central differences is about h² + 2^-53 / h.
  CHECK(difference(values(jacobian(ctx, branch, alone.params.branch, alone.x.view())), differences(alone)) < 1e-8);
  const Stack layers{Residual{update::HeavyBall{}, branch}, 3};  // the adjoint of the carry matters
  auto deep = pass<double>(ctx, layers, 1);
  CHECK(difference(values(jacobian(ctx, layers, deep.params, deep.x.view())), differences(deep)) < 1e-8);
}

TEST_CASE("jacobian: accepts exactly one item") {
  Cpu::Context ctx(1);
  const auto branch = mixture(0);
  const auto params = branch.init<double, Cpu>(ctx, Seed{1});
  const Tensor<double, 2, Cpu> two(2, 3);
  CHECK(message_of([&] { (void)jacobian(ctx, branch, params, two.view()); }) ==
        "jacobian: x: expected [1, 3], got [2, 3]");
}

using Complex = std::complex<double>;

namespace {

/// Returns (‖x_{2t}‖ / ‖x_t‖)^(1/t) of the recursion itself, for one σ.
double growth(Complex sigma, double mu, double gamma) {
  Complex x = 1, p = 0;
  double log_scale = 0, halfway = 0;
  const int steps = 20000;
  for (int t = 0; t < 2 * steps; ++t) {
    p = mu * p - sigma * x;
    x += gamma * p;
    const double size = std::abs(x) + std::abs(p);
    if (size == 0) return 0;
    x /= size, p /= size, log_scale += std::log(size);
    if (t + 1 == steps) halfway = log_scale;
  }
  return std::exp((log_scale - halfway) / steps);
}

}  // namespace

TEST_CASE("stability (1): the radius is the growth per layer") {
  for (const double mu : {-0.5, 0.0, 0.3, 0.7, 0.95})
    for (const double gamma : {0.3, 1.0})
      for (const Complex sigma :
           {Complex(0.1), Complex(1.7), Complex(3.9), Complex(-0.2), Complex(0.5, 0.8), Complex(1, -2)}) {
        CAPTURE(mu);
        CAPTURE(sigma);
        const auto s = metric::stability(std::array{sigma}, mu, gamma);
        CHECK(s.radius ==
              doctest::Approx(growth(sigma, mu, gamma)).epsilon(1e-3));  // a double root adds a factor below t^(1/t)
      }
}

TEST_CASE("stability (2), (3): agrees with Lemma 1 at its limits") {
  const auto stable = [](Complex sigma, double mu, double gamma) {
    const auto s = metric::stability(std::array{sigma}, mu, gamma);
    if (std::abs(s.radius - 1) > 1e-9) CHECK(s.stable == (s.radius < 1));  // both criteria agree
    return s.stable;
  };
  for (const double mu : {-0.9, -0.5, 0.0, 0.5, 0.9}) {
    const double border = 2 + 2 * mu;
    CHECK(stable(border - 1e-6, mu, 1));
    CHECK(!stable(border, mu, 1));
    CHECK(!stable(border + 1e-6, mu, 1));
    CHECK(stable(1e-6, mu, 1));
    CHECK(!stable(0.0, mu, 1));
    CHECK(!stable(-1e-6, mu, 1));
    CHECK(stable((border - 1e-6) / 0.25, mu, 0.25));
    CHECK(!stable(border / 0.25 + 1e-6, mu, 0.25));
  }
  CHECK(!stable(1, 1, 1));
  CHECK(!stable(1, -1, 1));
  CHECK(!stable(0.1, 1.5, 1));
  CHECK(stable(Complex(1, 0.5), 0, 1));  // |1 - sigma| < 1
  CHECK(!stable(Complex(1, 1.5), 0, 1));
  CHECK(!stable(Complex(0, 0.1), 0.5, 1));
}

TEST_CASE("stability: the worst eigenvalue decides") {
  const std::vector<Complex> sigma{{0.5, 0}, {1.5, 2}, {1.5, -2}, {-0.25, 0}};
  const auto s = metric::stability(sigma, 0.5, 1);
  CHECK(!s.stable);
  CHECK(s.smallest == -0.25);
  CHECK(s.largest == 1.5);
  CHECK(s.largest_imaginary == 2);
  double worst = 0;
  for (const Complex v : sigma) worst = std::max(worst, metric::stability(std::array{v}, 0.5, 1).radius);
  CHECK(s.radius == worst);
  CHECK(metric::stability({}, 0.5, 1).stable);
  const auto broken = metric::stability(std::array{Complex(1), Complex(quiet_nan), Complex(1)}, 0.5, 1);
  CHECK(!broken.stable);
  CHECK(std::isnan(broken.radius));
  for (const std::size_t place : {0, 1, 2}) {  // NaN at any position
    std::array<Complex, 3> sigma{Complex(1), Complex(1), Complex(1)};
    sigma[place] = {quiet_nan, quiet_nan};
    const auto s = metric::stability(sigma, 0.5, 1);
    CHECK((std::isnan(s.smallest) && std::isnan(s.largest) && std::isnan(s.largest_imaginary)));
  }
  CHECK(message_of([] { (void)metric::stability({}, 0.5, 0); }) == "stability: gamma: expected above 0, got 0");
}

TEST_CASE("stability: predicts a deep heavy-ball stack with linear branches") {
  Cpu::Context ctx(1);
  const double mu = 0.5;  // the limit of sigma is 2 + 2 mu = 3
  for (const double sigma : {0.4, 2.9, 3.1, -0.1}) {
    const Index depth = 150;
    auto p = pass<double>(
        ctx,
        Stack{Residual{update::HeavyBall{.mu = mu, .gamma = 1}, OneExpert{Linear{.model_dim = 2, .bias = false}}},
              depth},
        1);
    for (auto& layer : p.params.layers) {  // u = -sigma x in one direction, -x in the other
      fill(ctx, layer.branch.expert.weight.view(), 0);
      layer.branch.expert.weight(0, 0, 0) = -sigma;
      layer.branch.expert.weight(0, 1, 1) = -1;
    }
    p.x = matrix<double>({{1, 1}});
    p.forward();
    const bool stable = metric::stability(std::array{Complex(sigma), Complex(1)}, mu, 1).stable;
    CHECK(stable == (sigma > 0 && sigma < 3));
    CHECK(stable == (std::abs(p.y(0, 0)) < 0.1));
    CHECK(stable != (std::abs(p.y(0, 0)) > 10));
    CHECK(std::abs(p.y(0, 1)) < 1e-10);
  }
}
