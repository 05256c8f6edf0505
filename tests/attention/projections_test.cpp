#include "gatefold/attention/projections.hpp"

#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE("projections: heads divide the width; shapes equal the width") {
  CHECK_NOTHROW(detail_::attending::expect_heads("Some", 6, 3));
  CHECK_THROWS_WITH_AS(detail_::attending::expect_heads("Some", 0, 1), "Some: model_dim: expected at least 1, got 0",
                       ArgumentError);
  for (const Index heads : {0, 4}) CHECK_THROWS_AS(detail_::attending::expect_heads("Some", 6, heads), ArgumentError);
  CHECK_THROWS_WITH_AS(detail_::attending::expect_heads("Some", 6, 4),
                       "Some: heads: expected a divisor of model_dim = 6, got 4", ArgumentError);

  Cpu::Context ctx(1);
  auto params = init_params<float, Cpu>(Attention{.model_dim = 4}, ctx, Seed{1});
  CHECK_NOTHROW(detail_::attending::expect_projections("Some", params, {4, 4}));
  for (auto* t : {&params.query, &params.key, &params.value, &params.output}) {
    t->resize(4, 3);
    CHECK_THROWS_AS(detail_::attending::expect_projections("Some", params, {4, 4}), ArgumentError);
    t->resize(4, 4);
  }
  params.value.resize(4, 3);
  CHECK_THROWS_WITH_AS(detail_::attending::expect_projections("Some", params, {4, 4}),
                       "Some: params.value: expected [4, 4], got [4, 3]", ArgumentError);
}

TEST_CASE("projections: compute x w; backward adds both gradients") {
  Cpu::Context ctx(2);
  constexpr Index n = 5, width = 3;
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, n, width),
             dy = uniform_tensor<double>(ctx, Seed{2}, 1, n, width);
  const auto w = uniform_tensor<double>(ctx, Seed{3}, 1, width, width);
  auto y = constant_tensor<double>(ctx, 7, n, width), dx = constant_tensor<double>(ctx, 2, n, width),
       dw = constant_tensor<double>(ctx, 3, width, width);
  detail_::attending::project(ctx, x, w, y);
  detail_::attending::project_backward(ctx, x, w, dy, dx, dw);
  for (Index j = 0; j < width; ++j) {
    for (Index i = 0; i < n; ++i) {
      double product = 0, back = 2;
      for (Index k = 0; k < width; ++k) product += x(i, k) * w(k, j), back += dy(i, k) * w(j, k);
      CHECK(y(i, j) == doctest::Approx(product).epsilon(1e-13));
      CHECK(dx(i, j) == doctest::Approx(back).epsilon(1e-13));
    }
    for (Index k = 0; k < width; ++k) {
      double sum = 3;
      for (Index i = 0; i < n; ++i) sum += x(i, k) * dy(i, j);
      CHECK(dw(k, j) == doctest::Approx(sum).epsilon(1e-13));
    }
  }
}
