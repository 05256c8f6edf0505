#include "sample.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace gatefold;
using generating::sample;

namespace {

const std::vector<float> logits{1.0f, 3.0f, 2.0f, -1.0f, 3.0f, 0.0f};  // most probable first: 1, 4, 2, 0, 5, 3
constexpr Index draws = 40000;

/// Returns how often each token is drawn, relative to the number of draws.
std::vector<double> frequencies(const generating::Sampling& options) {
  std::vector<double> count(logits.size());
  for (Index i = 0; i < draws; ++i) count[static_cast<std::size_t>(sample(logits, options, i))] += 1;
  for (double& n : count) n /= draws;
  return count;
}

/// Checks frequencies against exp(z / temperature) / sum over the given tokens. Other tokens must not be drawn. The
/// largest accepted difference is four standard deviations of the frequency.
void check_softmax(const std::vector<double>& got, double temperature, const std::vector<std::size_t>& tokens) {
  double sum = 0;
  std::vector<double> expected(logits.size());
  for (const std::size_t t : tokens) sum += expected[t] = std::exp(double(logits[t]) / temperature);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const double p = expected[t] / sum;
    CAPTURE(t);
    CHECK(std::abs(got[t] - p) <= 4 * std::sqrt(p * (1 - p) / draws));
  }
}

}  // namespace

TEST_CASE("sample: temperature 0 returns the first largest logit") {
  for (Index i = 0; i < 20; ++i) CHECK(sample(logits, {.temperature = 0, .top_k = 3, .top_p = 0.1}, i) == 1);
}

TEST_CASE("sample: frequencies are softmax probabilities") {
  check_softmax(frequencies({.temperature = 1}), 1, {0, 1, 2, 3, 4, 5});
  check_softmax(frequencies({.temperature = 0.5}), 0.5, {0, 1, 2, 3, 4, 5});
  check_softmax(frequencies({.temperature = 3, .top_k = 100}), 3, {0, 1, 2, 3, 4, 5});
}

TEST_CASE("sample: top_k keeps the k largest logits") {
  check_softmax(frequencies({.temperature = 1, .top_k = 1}), 1, {1});
  check_softmax(frequencies({.temperature = 2, .top_k = 3}), 2, {1, 2, 4});
}

TEST_CASE("sample: top_p keeps the smallest set with probability top_p") {
  // Probabilities at temperature 1, most probable first: 0.389, 0.389, 0.143, 0.053, 0.019, 0.007.
  check_softmax(frequencies({.temperature = 1, .top_p = 0}), 1, {1});
  check_softmax(frequencies({.temperature = 1, .top_p = 0.38}), 1, {1});
  check_softmax(frequencies({.temperature = 1, .top_p = 0.4}), 1, {1, 4});
  check_softmax(frequencies({.temperature = 1, .top_p = 0.79}), 1, {1, 4, 2});
  // With top_k = 3, the probabilities are 0.422, 0.422 and 0.155: two of them sum to 0.844.
  check_softmax(frequencies({.temperature = 1, .top_k = 3, .top_p = 0.8}), 1, {1, 4});
}

TEST_CASE("sample: the seed determines all tokens") {
  const auto tokens = [](std::uint64_t seed) {
    std::vector<Index> drawn;
    for (Index i = 0; i < 50; ++i) drawn.push_back(sample(logits, {.temperature = 2, .seed = seed}, i));
    return drawn;
  };
  CHECK(tokens(7) == tokens(7));
  CHECK(tokens(7) != tokens(8));
}

TEST_CASE("sample: tokens with logit minus infinity are not drawn") {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> masked{none, 1.0f, none, 1.0f};
  for (Index i = 0; i < 100; ++i) CHECK(sample(masked, {.temperature = 5}, i) % 2 == 1);
}

TEST_CASE("sample: NaN and missing logits are errors") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH_AS(sample(std::vector<float>{1, nan}, {}, 0), "sample: logits: expected numbers, got NaN",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(sample(std::vector<float>{}, {}, 0),
                       "sample: logits: expected a finite largest logit, got no logits", ArgumentError);
  for (const float all : {infinite, -infinite})
    CHECK_THROWS_WITH_AS(sample(std::vector<float>{all, all}, {}, 0),
                         "sample: logits: expected a finite largest logit, got an infinite one", ArgumentError);
}
