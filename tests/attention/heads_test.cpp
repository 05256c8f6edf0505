#include "gatefold/attention/heads.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/gatefold.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("HeadRows: stores each head of a sequence as a sequence") {
  for (const Index heads : {1, 3})
    for (const Index length : {1, 4, 12}) {
      const detail_::attending::HeadRows rows{heads, length};
      std::set<Index> all;
      for (Index n = 0; n < 12; ++n)
        for (Index h = 0; h < heads; ++h) {
          const Index row = rows.row(n, h);
          all.insert(row);
          CHECK(row / length == n / length * heads + h);
          CHECK(row % length == n % length);
          CHECK(rows.item(row) == n);
          CHECK(rows.head(row) == h);
        }
      CHECK(static_cast<Index>(all.size()) == 12 * heads);
      CHECK(*all.rbegin() == 12 * heads - 1);
    }
}

TEST_CASE("split_heads: moves columns per head; unused rows stay untouched") {
  Cpu::Context ctx(2);
  constexpr Index items = 12, length = 3, heads = 2, width = 5;
  const detail_::attending::HeadRows rows{heads, length};
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, heads * width);
  const std::vector<Index> offsets{1, 3};  // slots of `length` items
  auto mark = ctx.mark();
  const auto split = detail_::attending::split_heads(ctx, rows, x.view());
  for (Index n = 0; n < items; ++n)
    for (Index h = 0; h < heads; ++h)
      for (Index c = 0; c < width; ++c) REQUIRE(split(rows.row(n, h), c) == x(n, h * width + c));
  auto sum = constant_tensor<double>(ctx, 7, items, heads * width);
  const detail_::attending::InUse<Cpu> in_use{offsets, length};
  detail_::attending::for_rows(ctx, items, in_use, functor::AddHeads<double, Cpu>{rows, split, sum});
  for (Index n = 0; n < items; ++n)
    for (Index c = 0; c < heads * width; ++c) REQUIRE(sum(n, c) == (in_use.has(n) ? 7 + x(n, c) : 7));

  const auto part = detail_::attending::split_heads(ctx, rows, x.view(), in_use);
  for (Index n = 3; n < 9; ++n)
    for (Index h = 0; h < heads; ++h) REQUIRE(part(rows.row(n, h), 0) == x(n, h * width));
}

TEST_CASE("split_heads: one head is not copied") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 6);
  CHECK(detail_::attending::split_heads(ctx, {1, 2}, x.view()).data() == x.data());
}

TEST_CASE("RepeatHeads, SumHeads: copy shared heads, and sum their gradients") {
  Cpu::Context ctx(2);
  constexpr Index items = 5, groups = 2, group = 3, width = 4, heads = groups * group;
  const auto from = uniform_tensor<double>(ctx, Seed{1}, 1, items, groups * width),
             d = uniform_tensor<double>(ctx, Seed{2}, 1, items, heads * width);
  Tensor<double, 2, Cpu> to(items, heads * width), sum(items, groups * width);
  Cpu::for_rows(ctx, items, functor::RepeatHeads<double, Cpu>{width, group, from, to});
  Cpu::for_rows(ctx, items, functor::SumHeads<double, Cpu>{width, group, d, sum});
  for (Index n = 0; n < items; ++n)
    for (Index g = 0; g < groups; ++g)
      for (Index c = 0; c < width; ++c) {
        double expected = 0;
        for (Index h = g * group; h < (g + 1) * group; ++h) {
          CHECK(to(n, h * width + c) == from(n, g * width + c));
          expected += d(n, h * width + c);
        }
        CHECK(std::abs(sum(n, g * width + c) - expected) <= 1e-15);
      }
}

TEST_CASE("projections: wrong numbers of heads and wrong shapes throw") {
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
