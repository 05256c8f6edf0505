#include "gatefold/metric/entropy.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("entropy (1): -sum q ln q of every item") {
  Cpu::Context ctx(2);
  const auto q = matrix<double>({{0.25, 0.25, 0.25, 0.25}, {0, 1, 0, 0}, {0.5, 0, 0.5, 0}, {0.7, 0.1, 0.1, 0.1}});
  const auto h = metric::entropies(ctx, q.view());
  REQUIRE(h.size() == 4);
  CHECK(h[0] == doctest::Approx(std::log(4.0)).epsilon(1e-15));
  CHECK(h[1] == 0);
  CHECK(h[2] == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(h[3] == doctest::Approx(-0.7 * std::log(0.7) - 0.3 * std::log(0.1)).epsilon(1e-15));
}

TEST_CASE("entropy (2): the mean over items excludes padding") {
  Cpu::Context ctx(2);
  auto q = matrix<float>({{0.5, 0.5}, {1, 0}, {quiet_nan, 0}});
  const std::vector<float> valid{1, 1, 0}, one{1};
  CHECK(std::isnan(metric::entropy(ctx, q.view())));
  CHECK(metric::entropy(ctx, q.view(), valid) == doctest::Approx(std::log(2.0) / 2).epsilon(1e-15));
  CHECK(metric::entropy(ctx, q.view().rows(0, 0)) == 0);
  CHECK(message_of([&] { (void)metric::entropy(ctx, q.view(), one); }) == "metric: valid: expected [3], got [1]");
}
