#include "gatefold/metric/perplexity.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("perplexity (1), (2), (3): mean log-sum-exp minus the label's logit") {
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

  // Ignored labels exclude items as the mask does, alone and together with it.
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

TEST_CASE("perplexity: limits") {
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
