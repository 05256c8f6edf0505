#include "gatefold/metric/metric.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "support/pass.hpp"

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

TEST_CASE("metric: an empty mask is empty, even with memory") {
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

TEST_CASE("metric: elements of a view are copied to the host") {
  Cpu::Context ctx(1);
  const auto m = matrix<float>({{1, 2}, {3, 4}});
  CHECK(metric::to_vector(ctx, m.view()) == std::vector<float>{1, 2, 3, 4});
}
