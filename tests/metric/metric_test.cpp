#include "gatefold/metric/metric.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

struct Value {
  View<const double, 1, Cpu> x;
  double operator()(Index n) const { return x(n); }
};
struct Key {
  View<const Index, 1, Cpu> x;
  Index operator()(Index n) const { return x(n); }
};

}  // namespace

TEST_CASE("metric: a mean excludes padding from sum and count") {
  Cpu::Context ctx(2);
  const std::vector<double> x{1, quiet_nan, 4, 7};
  const std::vector<double> valid{1, 0, 1, 1}, none{0, 0, 0, 0};
  CHECK(metric::mean<double, Cpu>(ctx, 4, Value{x}, valid) == 4);
  CHECK(metric::mean<double, Cpu>(ctx, 4, Value{x}, none) == 0);
  CHECK(metric::mean<double, Cpu>(ctx, 0, Value{x}, {}) == 0);
  CHECK(std::isnan(metric::mean<double, Cpu>(ctx, 4, Value{x}, {})));
  CHECK(metric::sum<Cpu>(ctx, 1, Value{x}) == 1);
  CHECK(metric::each<Cpu>(ctx, 3, Value{valid}) == std::vector<double>{1, 0, 1});
  CHECK(metric::each<Cpu>(ctx, 0, Value{valid}).empty());
  CHECK(message_of([&] { (void)metric::mean<double, Cpu>(ctx, 3, Value{x}, valid); }) ==
        "metric: valid: expected [3], got [4]");
}

TEST_CASE("metric: an empty mask with reserved memory means no mask") {
  Cpu::Context ctx(1);
  const std::vector<double> x{1, 4};
  std::vector<double> valid;
  valid.reserve(8);
  CHECK(metric::mean<double, Cpu>(ctx, 2, Value{x}, valid) == 2.5);
  CHECK(metric::mean<double, Cpu>(ctx, 0, Value{x}, valid) == 0);
  const std::vector<Index> labels{0, 1};
  metric::expect_labels<double, Cpu>("metric", 2, 2, labels, valid);
}

TEST_CASE("metric: a histogram counts keys and ignores negative keys") {
  Cpu::Context ctx(1);
  const std::vector<Index> keys{2, -1, 0, 2, 2, -7};
  CHECK(metric::histogram<Cpu>(ctx, 6, Key{keys}, 4) == std::vector<Index>{1, 0, 3, 0});
  CHECK(metric::histogram<Cpu>(ctx, 0, Key{keys}, 2) == std::vector<Index>{0, 0});
  CHECK(metric::histogram<Cpu>(ctx, 0, Key{keys}, 0).empty());
}

TEST_CASE("metric: the number of threads changes no bit") {
  Cpu::Context one(1);
  const auto x = uniform_tensor<double>(one, Seed{3}, 1, 50000);
  const double expected = metric::mean<double, Cpu>(one, x.size(), Value{x}, {});
  for (const int threads : {2, 3, 8}) {
    Cpu::Context ctx(threads);
    const double got = metric::mean<double, Cpu>(ctx, x.size(), Value{x}, {});
    CHECK(std::memcmp(&got, &expected, sizeof got) == 0);
  }
}

TEST_CASE("metric: labels must be in range, except those of padding") {
  const std::vector<Index> labels{0, 9, 2};
  const std::vector<float> valid{1, 0, 1};
  const auto message = [&](Index items, Index classes, View<const float, 1, Cpu> mask) {
    return message_of([&] { metric::expect_labels<float, Cpu>("metric", items, classes, labels, mask); });
  };
  CHECK(message(3, 3, valid) == "no ArgumentError");
  CHECK(message(3, 3, {}) == "metric: labels: expected labels from 0 to 2, got 9");
  CHECK(message(3, 2, valid) == "metric: labels: expected labels from 0 to 1, got 2");
  CHECK(message(4, 3, {}) == "metric: labels: expected [4], got [3]");
  CHECK(message(3, 3, {valid.data(), 2}) == "metric: valid: expected [3], got [2]");
}

TEST_CASE("to_vector: copies the elements of a view to the host") {
  Cpu::Context ctx(1);
  const auto m = matrix<float>({{1, 2}, {3, 4}});
  CHECK(metric::to_vector(ctx, m.view()) == std::vector<float>{1, 2, 3, 4});
}

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

TEST_CASE("perplexity (1)-(3): loss, perplexity and bits equal loops") {
  Cpu::Context ctx(2);
  const Index items = 30, classes = 6;
  const auto y = uniform_tensor<double>(ctx, Seed{6}, 4, items, classes);
  std::vector<Index> labels;
  std::vector<double> valid;
  double total = 0, counted = 0;
  for (Index n = 0; n < items; ++n) {
    labels.push_back(n * 7 % classes);
    valid.push_back(n % 3 ? 1 : 0);
    if (n % 3 == 0) continue;
    double sum = 0;
    for (Index c = 0; c < classes; ++c) sum += std::exp(y(n, c));
    total += std::log(sum) - y(n, labels.back());
    counted += 1;
  }
  const double nll = total / counted;
  CHECK(metric::negative_log_likelihood(ctx, y.view(), labels, valid) == doctest::Approx(nll).epsilon(1e-14));
  CHECK(metric::perplexity(ctx, y.view(), labels, valid) == doctest::Approx(std::exp(nll)).epsilon(1e-13));
  CHECK(metric::bits(ctx, y.view(), labels, valid) == doctest::Approx(nll / std::log(2.0)).epsilon(1e-14));

  // Ignored labels exclude items as the mask does, without a mask and together with one.
  std::vector<Index> ignoring = labels;
  for (std::size_t n = 0; n < ignoring.size(); n += 3) ignoring[n] = -1;
  CHECK(metric::perplexity(ctx, y.view(), ignoring, {}, -1) == metric::perplexity(ctx, y.view(), labels, valid));
  CHECK(metric::bits(ctx, y.view(), ignoring, valid, -1) == metric::bits(ctx, y.view(), labels, valid));
  valid.assign(valid.size(), 1);
  valid[1] = valid[2] = 0;
  ignoring = labels;
  ignoring[2] = ignoring[4] = 9;
  std::vector<double> neither = valid;
  neither[4] = 0;
  CHECK(metric::negative_log_likelihood(ctx, y.view(), ignoring, valid, 9) ==
        metric::negative_log_likelihood(ctx, y.view(), labels, neither));
  CHECK(message_of([&] { (void)metric::perplexity(ctx, y.view(), ignoring, valid); }) ==
        "perplexity: labels: expected labels from 0 to 5, got 9");
}

TEST_CASE("perplexity: handles equal, huge, NaN and no logits") {
  Cpu::Context ctx(1);
  const auto even = matrix<float>({{2, 2, 2, 2, 2}});
  const std::vector<Index> first{0}, fourth{3}, sixth{5}, both{1, 0};
  CHECK(metric::perplexity(ctx, even.view(), fourth) == doctest::Approx(5).epsilon(1e-14));
  const auto huge = matrix<float>({{1000, 0, -1000}, {3e38, -3e38, 0}});
  CHECK(metric::negative_log_likelihood(ctx, huge.view(), both) == 500);
  const auto broken = matrix<double>({{0, quiet_nan}});
  CHECK(std::isnan(metric::perplexity(ctx, broken.view(), first)));
  CHECK(metric::perplexity(ctx, even.view().rows(0, 0), {}) == 1);
  CHECK(message_of([&] { (void)metric::perplexity(ctx, even.view(), sixth); }) ==
        "perplexity: labels: expected labels from 0 to 4, got 5");
}
