#include "gatefold/papers/corruption_error.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using gatefold::support::message_of;

TEST_CASE("corruption_error (1): equals numbers calculated by hand") {
  // Over severities, errors sum to 1.5 and 0.6, those of the baseline to 2.0 and 0.5. The ratio of all errors to all
  // of the baseline would be 0.84.
  const std::vector<double> error{0.1, 0.2, 0.3, 0.4, 0.5, 0.0, 0.1, 0.1, 0.2, 0.2};
  const std::vector<double> baseline{0.2, 0.3, 0.4, 0.5, 0.6, 0.1, 0.1, 0.1, 0.1, 0.1};
  const auto ce = metric::corruption_error(error, baseline);
  REQUIRE(ce.of.size() == 2);
  CHECK(ce.of[0] == doctest::Approx(0.75).epsilon(1e-14));
  CHECK(ce.of[1] == doctest::Approx(1.2).epsilon(1e-14));
  CHECK(ce.mean == doctest::Approx(0.975).epsilon(1e-14));
  CHECK(metric::corruption_error(baseline, baseline).mean == doctest::Approx(1).epsilon(1e-14));
  const auto two = metric::corruption_error(std::vector<double>{1, 2, 3, 4}, std::vector<double>{1, 1, 7, 7}, 2);
  CHECK(two.of == std::vector<double>{1.5, 0.5});
  CHECK(two.mean == 1);
}

TEST_CASE("corruption_error: wrong arguments throw") {
  const std::vector<double> five(5, 0.5), ten(10, 0.5), four(4, 0.5), none;
  std::vector<double> perfect(10, 0.5);
  for (std::size_t i = 5; i < 10; ++i) perfect[i] = 0;
  const auto said = [](const std::vector<double>& a, const std::vector<double>& b, Index severities = 5) {
    return message_of([&] { (void)metric::corruption_error(a, b, severities); });
  };
  CHECK(said(four, four) == "corruption_error: error: expected a multiple of severities = 5, got 4");
  CHECK(said(none, none) == "corruption_error: error: expected a multiple of severities = 5, got 0");
  CHECK(said(five, ten) == "corruption_error: baseline: expected 5 numbers, as many as error has, got 10");
  CHECK(said(five, five, 0) == "corruption_error: severities: expected at least 1, got 0");
  CHECK(said(ten, perfect) == "corruption_error: baseline: expected an error above 0 for each corruption, got 0");
}
