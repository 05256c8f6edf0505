#include "gatefold/papers/specialisation.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"
#include "support/plans.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("specialisation (1): finds each expert's signal, each signal's experts") {
  Cpu::Context ctx(2);
  const auto v = matrix<float>({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}});
  const auto w = matrix<float>({{0.1, 2, 0}, {-3, 0.5, 0.4}, {1, 1, 0}, {-1, -2, -0.5}});
  const auto s = metric::specialisation(ctx, w.view().as(4, 1, 3), v);
  CHECK(s.signal == std::vector<Index>{1, 1, 0, 2});  // a tie goes to the lower signal
  CHECK(s.experts == std::vector<std::vector<Index>>{{2}, {0, 1}, {3}});
  CHECK(s.product(1, 0) == -3);
  const auto m = metric::specialisation(ctx, w.view().as(4, 1, 3), v, true);
  CHECK(m.signal == std::vector<Index>{1, 0, 0, 1});
}

TEST_CASE("specialisation: an expert uses its neurons' largest product") {
  Cpu::Context ctx(1);
  const auto v = matrix<double>({{1, 1}, {2, -1}});
  const auto w = matrix<double>({{1, 0}, {0, -3}, {-4, 0}, {0, 2}});  // two experts of two neurons
  const auto s = metric::specialisation(ctx, w.view().as(2, 2, 2), v);
  CHECK(s.products == std::vector<double>{1, 3, 2, -2});
  CHECK(s.signal == std::vector<Index>{1, 0});
  CHECK(metric::specialisation(ctx, w.view().as(2, 2, 2), v, true).products == std::vector<double>{3, 3, 4, 8});
}

TEST_CASE("specialisation: NaN is less than any number") {
  Cpu::Context ctx(1);
  const auto v = matrix<double>({{quiet_nan, 0}, {-1, 0}, {0, 1}});
  const auto w = matrix<double>({{1, 0}, {1, quiet_nan}});
  const auto s = metric::specialisation(ctx, w.view().as(2, 1, 2), v);
  CHECK(s.signal == std::vector<Index>{2, 0});  // an expert with NaN gets the first signal
  CHECK(std::isnan(metric::specialisation(ctx, w.view().as(1, 2, 2), v).product(0, 1)));
}

TEST_CASE("specialisation: wrong arguments throw") {
  Cpu::Context ctx(1);
  const Tensor<double, 3, Cpu> w(2, 1, 3), empty(2, 0, 3);
  const Tensor<double, 2, Cpu> v(4, 2), none(0, 3);
  CHECK(message_of([&] { (void)metric::specialisation(ctx, w.view(), v); }) ==
        "specialisation: signals: expected [?, 3], got [4, 2]");
  CHECK(message_of([&] { (void)metric::specialisation(ctx, w.view(), none); }) ==
        "specialisation: signals.extent(0): expected at least 1, got 0");
  CHECK(message_of([&] { (void)metric::specialisation(ctx, empty.view(), v); }) ==
        "specialisation: weights.extent(1): expected at least 1, got 0");
}

TEST_CASE("dispatch_entropy (1): equals the sum over experts and clusters") {
  Cpu::Context ctx(2);
  const Index items = 40, experts = 5, clusters = 3;
  for (const Index k : {1, 2}) {
    std::vector<Pick> picks;
    std::vector<Index> labels;
    double count[3][5] = {};
    for (Index n = 0; n < items; ++n) {
      labels.push_back(n * n % clusters);
      for (Index j = 0; j < k; ++j) {
        picks.push_back({n, (n * 7 + j + n / 5) % 4});  // expert 4 stays empty
        count[labels.back()][picks.back().expert] += 1;
      }
    }
    double expected = 0;
    for (int m = 0; m < experts; ++m) {
      double load = 0, inner = 0;
      for (int c = 0; c < clusters; ++c) load += count[c][m];
      for (int c = 0; c < clusters; ++c)
        if (count[c][m] > 0) inner += count[c][m] / load * std::log(count[c][m] / load);
      if (load > 0) expected -= load / static_cast<double>(items * k) * inner;
    }
    CHECK(expected > 0.1);
    CHECK(metric::dispatch_entropy(ctx, plan_of<float>(ctx, items, experts, picks), labels, clusters) ==
          doctest::Approx(expected).epsilon(1e-14));
  }
}

TEST_CASE("dispatch_entropy: pure experts give 0, a mixed expert ln K") {
  Cpu::Context ctx(1);
  const std::vector<Index> labels{0, 1, 2, 3};
  const auto entropy = [&](const std::vector<Pick>& picks) {
    return metric::dispatch_entropy(ctx, plan_of<double>(ctx, 4, 6, picks), labels, 4);
  };
  CHECK(entropy({{0, 3}, {1, 0}, {2, 1}, {3, 2}}) == 0);
  CHECK(entropy({{0, 3}, {1, 3}, {2, 3}, {3, 3}}) == doctest::Approx(std::log(4.0)).epsilon(1e-15));
  CHECK(entropy({{0, -1}, {1, -1}}) == 0);
  const std::vector<double> valid{1, 0, 0, 0};
  CHECK(metric::dispatch_entropy(ctx, plan_of<double>(ctx, 4, 6, {{0, 3}, {1, 3}}), labels, 4, valid) == 0);
}
