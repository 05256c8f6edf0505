#include "gatefold/update/linear_scalar.hpp"

#include <doctest/doctest.h>

#include <utility>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;
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

TEST_CASE("LinearScalar: 0 dimensions give no values; wrong ones throw") {
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
