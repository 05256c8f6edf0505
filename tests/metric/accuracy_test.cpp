#include "gatefold/metric/accuracy.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("accuracy (1): equals a stable sort of the logits") {
  Cpu::Context ctx(2);
  const Index items = 50, classes = 7;
  auto y = uniform_tensor<float>(ctx, Seed{5}, 1, items, classes);
  for (Index i = 0; i < y.size(); ++i) y.data()[i] = std::round(3 * y.data()[i]);  // many ties
  std::vector<Index> labels;
  for (Index n = 0; n < items; ++n) labels.push_back(n * 5 % classes);
  std::vector<float> valid(static_cast<std::size_t>(items), 1.0f);
  for (std::size_t n = 0; n < valid.size(); n += 4) valid[n] = 0;
  for (const Index k : {1, 2, 5, 7}) {
    double right = 0, counted = 0;
    for (Index n = 0; n < items; ++n) {
      if (valid[static_cast<std::size_t>(n)] == 0) continue;
      std::vector<Index> order{0, 1, 2, 3, 4, 5, 6};
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return y(n, a) > y(n, b); });
      counted += 1;
      right += std::find(order.begin(), order.begin() + k, labels[static_cast<std::size_t>(n)]) != order.begin() + k;
    }
    CHECK(metric::accuracy(ctx, y.view(), labels, k, valid) == doctest::Approx(right / counted).epsilon(1e-15));
    std::vector<Index> ignoring = labels;
    for (std::size_t n = 0; n < valid.size(); ++n)
      if (valid[n] == 0) ignoring[n] = -100;
    CHECK(metric::accuracy(ctx, y.view(), ignoring, k, {}, -100) == metric::accuracy(ctx, y.view(), labels, k, valid));
  }
}

TEST_CASE("accuracy: NaN is never correct") {
  Cpu::Context ctx(1);
  const auto y = matrix<double>({{quiet_nan, 1, 0}, {quiet_nan, 1, 0}, {quiet_nan, quiet_nan, quiet_nan}});
  const std::vector<Index> labels{0, 1, 0};
  CHECK(metric::accuracy(ctx, y.view(), labels, 1) == 0);
  CHECK(metric::accuracy(ctx, y.view(), labels, 2) == rounded(1.0 / 3));
  CHECK(metric::accuracy(ctx, y.view(), labels, 3) == rounded(1.0 / 3));
}

TEST_CASE("accuracy: works without items; wrong arguments throw") {
  Cpu::Context ctx(1);
  const auto y = matrix<float>({{1, 2}});
  CHECK(metric::accuracy(ctx, y.view().rows(0, 0), {}) == 0);
  const auto message = [&](const std::vector<Index>& labels, Index k) {
    return message_of([&] { (void)metric::accuracy(ctx, y.view(), labels, k); });
  };
  CHECK(message({1}, 3) == "accuracy: k: expected 1 <= k <= classes = 2, got 3");
  CHECK(message({1}, 0) == "accuracy: k: expected 1 <= k <= classes = 2, got 0");
  CHECK(message({2}, 1) == "accuracy: labels: expected labels from 0 to 1, got 2");
  CHECK(message({1, 1}, 1) == "accuracy: labels: expected [1], got [2]");
}
