#include "gatefold/papers/dispatch_entropy.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"
#include "support/plans.hpp"

using namespace gatefold;
using namespace gatefold::support;

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

TEST_CASE("dispatch_entropy: 0 for one cluster per expert, ln K mixed") {
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
