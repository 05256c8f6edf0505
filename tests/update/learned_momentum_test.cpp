#include "gatefold/update/learned_momentum.hpp"

#include <doctest/doctest.h>

#include <utility>

#include "support/pass.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Matrix = Tensor<double, 2, Cpu>;
using Vector = Tensor<double, 1, Cpu>;

/// One layer of two items with the branch u = 3 x: its results, and the adjoints for dy and dp.
struct Layer {
  Matrix x = matrix<double>({{1, -2}, {0.5, 4}}), p = matrix<double>({{2, 1}, {-1, 3}}), y{2, 2};
  Matrix dy = matrix<double>({{1, 2}, {-3, 1}}), dp = matrix<double>({{0.5, 0}, {1, -1}}), dx{2, 2};
  Vector dmu, dgamma;

  Layer(const functor::Coefficient<double>& mu, const functor::Coefficient<double>& gamma, Index mus, Index gammas) {
    Cpu::Context ctx(1);
    update::KeptMomentum<double, Cpu> kept;
    dmu = constant_tensor<double>(ctx, 0, mus);
    dgamma = constant_tensor<double>(ctx, 0, gammas);
    set_zero(ctx, dx);
    update::learned_momentum_forward(
        ctx, mu, gamma, std::as_const(x).view(),
        support::with_steps<double>(ctx,
                                    [&](View<const double, 2, Cpu> point, View<double, 2, Cpu> u, int) {
                                      fill(ctx, u, 0);
                                      add_scaled(ctx, 3, point, u);
                                    }),
        p.view(), y.view(), kept);
    update::learned_momentum_backward(
        ctx, mu, gamma, std::as_const(x).view(), kept,
        [&](View<const double, 2, Cpu>, View<const double, 2, Cpu> du, View<double, 2, Cpu> dpoint, int) {
          add_scaled(ctx, 3, du, dpoint);
        },
        std::as_const(dy).view(), dp.view(), dx.view(), dmu, dgamma);
  }
};

}  // namespace

TEST_CASE("learned momentum (1): one μ, one γ equal hand calculation") {
  const double mu = 0.5, gamma = 2;
  const Layer l({.learned = &mu}, {.learned = &gamma}, 1, 1);
  CHECK(values(l.p) == std::vector<double>{4, -5.5, 1, 13.5});
  CHECK(values(l.y) == std::vector<double>{9, -13, 2.5, 31});
  const std::vector<double> du{2.5, 4, -5, 1};  // γ dy + dp
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(l.dp.data()[i] == 0.5 * du[i]);
    CHECK(l.dx.data()[i] == l.dy.data()[i] + 3 * du[i]);
  }
  CHECK(l.dmu(0) == 2.5 * 2 + 4 * 1 + 5 * 1 + 1 * 3);          // ⟨du, p before⟩
  CHECK(l.dgamma(0) == 1 * 4 + 2 * -5.5 + -3 * 1 + 1 * 13.5);  // ⟨dy, p after⟩
}

TEST_CASE("learned momentum (1): a γ per item equals hand calculation") {
  const double gamma[] = {2, -1};
  const Layer l({.fixed = 0.5}, {.learned = gamma, .per_item = true}, 0, 2);
  CHECK(values(l.y) == std::vector<double>{9, -13, -0.5, -9.5});
  CHECK(values(l.dgamma) == std::vector<double>{1 * 4 + 2 * -5.5, -3 * 1 + 1 * 13.5});
  CHECK(values(l.dp) == std::vector<double>{0.5 * 2.5, 0.5 * 4, 0.5 * 4, 0.5 * -2});
}

TEST_CASE("learned momentum (1): fixed μ and γ learn nothing") {
  const Layer l({.fixed = 0.5}, {.fixed = 2}, 0, 0);
  CHECK(values(l.y) == std::vector<double>{9, -13, 2.5, 31});
}

using Scalar = update::LinearScalar<double, Cpu>;

TEST_CASE("LinearScalar (1): z = ⟨x, w⟩ + b; backward adds") {
  Cpu::Context ctx(1);
  Scalar p{matrix<double>({{2}, {-1}, {0.5}}), constant_tensor<double>(ctx, 10, 1)};
  Scalar grads = zeros_like(ctx, p);
  grads.bias(0) = 100;
  const auto x = matrix<double>({{1, 2, 4}, {0, -3, 2}});
  auto z = constant_tensor<double>(ctx, quiet_nan, 2), dz = constant_tensor<double>(ctx, 3, 2);
  auto dx = constant_tensor<double>(ctx, 1, 2, 3);
  p.forward(ctx, x, z);
  CHECK(values(z) == std::vector<double>{12, 14});
  dz(1) = -1;
  p.backward(ctx, x, dz, dx, grads);
  CHECK(values(dx) == std::vector<double>{7, -2, 2.5, -1, 2, 0.5});
  CHECK(values(grads) == std::vector<double>{3, 9, 10, 102});
}

TEST_CASE("LinearScalar: 0 dimensions give no parameters; wrong dimensions throw") {
  Cpu::Context ctx(1);
  const Scalar none = Scalar::init(ctx, {}, 0, Seed{1}), three = Scalar::init(ctx, {}, 3, Seed{1});
  CHECK(count_values(none) == 0);
  CHECK(count_values(three) == 4);
  none.validate("Rule", 0);
  three.validate("Rule", 3);
  CHECK(message_of([&] { three.validate("Rule", 2); }) == "Rule: params.linear.weight: expected [2, 1], got [3, 1]");
  CHECK(message_of([&] { none.validate("Rule", 2); }) == "Rule: params.linear.weight: expected [2, 1], got [0, 1]");
}

TEST_CASE("LinearScalar: an empty batch works") {
  Cpu::Context ctx(1);
  const Scalar p = Scalar::init(ctx, {}, 3, Seed{1});
  Scalar grads = zeros_like(ctx, p);
  Tensor<double, 2, Cpu> x(0, 3), dx(0, 3);
  Tensor<double, 1, Cpu> z(0);
  p.forward(ctx, std::as_const(x).view(), z);
  p.backward(ctx, std::as_const(x).view(), std::as_const(z).view(), dx, grads);
  CHECK(values(grads) == std::vector<double>{0, 0, 0, 0});
}
