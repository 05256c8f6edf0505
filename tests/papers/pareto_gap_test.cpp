#include "gatefold/papers/pareto_gap.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "support/pass.hpp"
#include "support/plans.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t d = 0; d < a.size(); ++d) sum += a[d] * b[d];
  return sum;
}
Vector sum(const Vector& scales, const std::vector<Vector>& vectors) {
  Vector v(vectors[0].size());
  for (std::size_t e = 0; e < vectors.size(); ++e)
    for (std::size_t d = 0; d < v.size(); ++d) v[d] += scales[e] * vectors[e][d];
  return v;
}
std::vector<Vector> outputs_of(const Tensor<double, 3, Cpu>& u, Index n) {
  std::vector<Vector> all;
  for (Index e = 0; e < u.extent(1); ++e) {
    all.emplace_back();
    for (Index d = 0; d < u.extent(2); ++d) all.back().push_back(u(n, e, d));
  }
  return all;
}
std::vector<Vector> normalised(std::vector<Vector> u) {
  for (Vector& v : u) v = sum({1 / std::sqrt(dot(v, v))}, {v});
  return u;
}

}  // namespace

TEST_CASE("pareto_gap (1), (3): finds the bisector for two experts") {
  Cpu::Context ctx(2);
  const auto u = uniform_tensor<double>(ctx, Seed{7}, 1, 20, 2, 3);
  const auto w = uniform_tensor<double>(ctx, Seed{8}, 1, 20, 2);
  const auto p = metric::pareto_gap(ctx, u.view(), w);
  REQUIRE(p.items.size() == 20);
  for (Index n = 0; n < 20; ++n) {
    const auto outputs = outputs_of(u, n), units = normalised(outputs);
    const Vector v = sum({0.5, 0.5}, units), m = sum({w(n, 0), w(n, 1)}, outputs), g = sum({w(n, 0), w(n, 1)}, units);
    const auto& got = p.items[static_cast<std::size_t>(n)];
    CHECK(got.least == doctest::Approx(std::sqrt(dot(v, v))).epsilon(1e-12));
    CHECK(got.normalised == doctest::Approx(std::sqrt(dot(g, g))).epsilon(1e-12));
    CHECK(got.mixture == doctest::Approx(std::sqrt(dot(m, m))).epsilon(1e-12));
    CHECK(got.cosine == doctest::Approx(dot(m, v) / std::sqrt(dot(m, m) * dot(v, v))).epsilon(1e-11));
    CHECK(got.gap <= 1e-12);
  }
}

TEST_CASE("pareto_gap (1): equals a grid search for three experts") {
  Cpu::Context ctx(1);
  const auto u = uniform_tensor<double>(ctx, Seed{9}, 1, 12, 3, 2);
  const auto even = constant_tensor<double>(ctx, 1.0 / 3, 12, 3);
  const auto p = metric::pareto_gap(ctx, u.view(), even);
  int zeros = 0, borders = 0;
  for (Index n = 0; n < 12; ++n) {
    const auto units = normalised(outputs_of(u, n));
    const int grid = 400;
    double least = 10;
    bool border = false;
    for (int i = 0; i <= grid; ++i)
      for (int j = 0; i + j <= grid; ++j) {
        const Vector v = sum({double(i) / grid, double(j) / grid, double(grid - i - j) / grid}, units);
        const double norm = std::sqrt(dot(v, v));
        if (norm < least) least = norm, border = i == 0 || j == 0 || i + j == grid;
      }
    const auto& got = p.items[static_cast<std::size_t>(n)];
    CHECK(got.least <= least + 1e-9);
    CHECK(got.least >= least - 0.006);  // the nearest grid point is at most this far away
    CHECK(got.normalised >= got.least - 1e-9);
    zeros += got.least < 1e-5;  // counts Pareto-stationary items
    borders += border;
  }
  CHECK(zeros > 0);  // some items are Pareto-stationary
  CHECK(borders > 0);
}

TEST_CASE("pareto_gap (2): the gap bounds any possible improvement") {
  Cpu::Context ctx(2);
  const Index items = 8, experts = 9;
  const auto u = uniform_tensor<double>(ctx, Seed{10}, 1, items, experts, 20);
  const auto w = constant_tensor<double>(ctx, 1.0 / 9, items, experts);
  const auto best = metric::pareto_gap(ctx, u.view(), w);
  double before = 10;
  for (const Index iterations : {0, 3, 10, 30}) {
    const auto p = metric::pareto_gap(ctx, u.view(), w, {.iterations = iterations});
    for (std::size_t n = 0; n < p.items.size(); ++n) {
      const double gain = p.items[n].least * p.items[n].least - best.items[n].least * best.items[n].least;
      CHECK(gain >= -1e-12);
      CHECK(gain <= 2 * p.items[n].gap + 1e-12);
      if (iterations == 0)
        CHECK(p.items[n].least == doctest::Approx(p.items[n].normalised).epsilon(1e-12));  // at equal weights
    }
    CHECK(p.mean.gap < before);
    before = p.mean.gap;
  }
  CHECK(best.mean.gap <= 1e-12);
}

TEST_CASE("pareto_gap: one step moves toward the best output") {
  Cpu::Context ctx(1);
  const auto u = uniform_tensor<double>(ctx, Seed{13}, 1, 10, 3, 4);
  const auto w = constant_tensor<double>(ctx, 1.0 / 3, 10, 3);
  const auto p = metric::pareto_gap(ctx, u.view(), w, {.iterations = 1, .tolerance = 0});
  int inside = 0;
  for (Index n = 0; n < 10; ++n) {
    const auto units = normalised(outputs_of(u, n));
    const Vector centre = sum({1.0 / 3, 1.0 / 3, 1.0 / 3}, units);
    std::size_t to = 0, from = 0;
    for (std::size_t e = 1; e < 3; ++e) {
      if (dot(units[e], centre) < dot(units[to], centre)) to = e;
      if (dot(units[e], centre) > dot(units[from], centre)) from = e;
    }
    double least = 10, at = 0;
    for (int i = 0; i <= 3000; ++i) {
      const double t = i / 9000.0;
      const Vector v = sum({1, t, -t}, {centre, units[to], units[from]});
      if (std::sqrt(dot(v, v)) < least) least = std::sqrt(dot(v, v)), at = t;
    }
    inside += at > 0.01 && at < 0.32;
    // The expected value is the least norm on a grid with step 1/9000.
    CHECK(p.items[static_cast<std::size_t>(n)].least == doctest::Approx(least).epsilon(1e-6));
  }
  CHECK(inside > 0);
}

TEST_CASE("pareto_gap: handles equal, opposite and zero outputs and padding") {
  Cpu::Context ctx(1);
  Tensor<double, 3, Cpu> u(4, 2, 1);
  const std::vector<double> values{2, 5, 3, -1, 0, 4, quiet_nan, 1};
  std::copy(values.begin(), values.end(), u.data());
  const auto w = constant_tensor<double>(ctx, 0.5, 4, 2);
  std::vector<double> valid(4, 1);  // not {1, 1, 1, 0}: g++ 12.2 with AVX-512 fills such a list with ones
  valid[3] = 0;
  const auto p = metric::pareto_gap(ctx, u.view(), w, {}, valid);
  CHECK(p.items[0].least == rounded(1));
  CHECK(p.items[0].cosine == rounded(1));
  CHECK(p.items[0].mixture == rounded(3.5));
  CHECK(p.items[1].least <= 1e-9);
  CHECK(p.items[1].normalised == 0);
  CHECK(p.items[1].mixture == 1);
  CHECK(p.items[2].least <= 1e-9);
  CHECK(p.items[2].mixture == 2);
  CHECK(std::isnan(p.items[3].least));
  CHECK(std::isnan(p.items[3].cosine));
  CHECK(p.mean.least == rounded(1.0 / 3));
  CHECK(p.mean.mixture == rounded(6.5 / 3));

  const auto one = metric::pareto_gap(ctx, u.view().as(8, 1, 1), constant_tensor<double>(ctx, 2, 8, 1));
  CHECK(one.items[1].least == rounded(1));
  CHECK(one.items[1].normalised == rounded(2));
  CHECK(one.items[1].gap <= 1e-15);
  CHECK(metric::pareto_gap(ctx, u.view().rows(0, 0), w.view().rows(0, 0)).items.empty());
}

TEST_CASE("pareto_gap: cosine is 0 if the combination vanishes") {
  Cpu::Context ctx(1);
  // The convex hull of the outputs `around` contains 0. One output of `dead` is 0.
  const std::vector<double> around{3, 3, 1, 3, -3, -1, -3, -3}, dead{1, 2, 0, 3, 1, 0, 0, 0};
  const std::vector<double> even(4, 0.25);
  for (const auto& u : {around, dead}) {
    const auto item = metric::pareto_gap(ctx, View<const double, 3, Cpu>(u.data(), 1, 4, 2),
                                         View<const double, 2, Cpu>(even.data(), 1, 4))
                          .items[0];
    CHECK(item.least <= 2e-6);
    CHECK(item.mixture > 0);
    CHECK(item.cosine == 0);
  }
  const auto u = uniform_tensor<double>(ctx, Seed{3}, 1, 500, 4, 2);
  const auto w = constant_tensor<double>(ctx, 0.25, 500, 4);
  int stationary = 0;
  for (const auto& item : metric::pareto_gap(ctx, u.view(), w).items) {
    CHECK(std::abs(item.cosine) <= 1);
    stationary += item.least < 1e-7 && item.cosine == 0;
  }
  CHECK(stationary > 100);  // four directions in a plane surround 0 half of the time
}

TEST_CASE("pareto_gap: the number of threads changes no bit") {
  Cpu::Context one(1), many(8);
  const auto u = uniform_tensor<float>(one, Seed{11}, 1, 100, 5, 4);
  const auto w = constant_tensor<float>(one, 0.2, 100, 5);
  const auto a = metric::pareto_gap(one, u.view(), w), b = metric::pareto_gap(many, u.view(), w);
  CHECK(std::memcmp(a.items.data(), b.items.data(), a.items.size() * sizeof(metric::Pareto)) == 0);
}

TEST_CASE("gate_weights: converts a plan to a table") {
  Cpu::Context ctx(1);
  const auto plan = plan_of<float>(ctx, 3, 3, {{1, 2, 0.25}, {0, 1, 0.5}, {1, 0, 0.75}, {2, -1, 1.0}});
  const auto w = metric::gate_weights(ctx, plan);
  CHECK(values(w) == std::vector<double>{0, 0.5, 0, 0.75, 0, 0.25, 0, 0, 0});
}

TEST_CASE("pareto_gap: wrong arguments throw") {
  Cpu::Context ctx(1);
  const Tensor<double, 3, Cpu> u(4, 2, 1), none(4, 0, 1);
  const Tensor<double, 2, Cpu> w(4, 3), v(4, 2), nothing(4, 0);
  CHECK(message_of([&] { (void)metric::pareto_gap(ctx, u.view(), w); }) ==
        "pareto_gap: weights: expected [4, 2], got [4, 3]");
  CHECK(message_of([&] { (void)metric::pareto_gap(ctx, none.view(), nothing); }) ==
        "pareto_gap: outputs.extent(1): expected at least 1, got 0");
  CHECK(message_of([&] { (void)metric::pareto_gap(ctx, u.view(), v, {.iterations = -1}); }) ==
        "pareto_gap: iterations: expected at least 0, got -1");
  CHECK(message_of([&] { (void)metric::pareto_gap(ctx, u.view(), v, {.tolerance = -1}); }) ==
        "pareto_gap: tolerance: expected at least 0, got -1");
}
