#include "kneser_ney.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <gatefold/core/philox.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

using baseline::KneserNey;
using gatefold::Index;

namespace {

using Ids = std::vector<KneserNey::Id>;

/// Returns random tokens that repeat like words: small numbers are frequent, and some pairs are more frequent than by
/// chance.
Ids text_of(Index tokens, Index vocabulary, std::uint64_t seed) {
  Ids ids;
  for (Index i = 0; i < tokens; ++i) {
    const auto u = [&](std::uint64_t part) {
      return gatefold::uniform<double>(gatefold::Seed{seed}, part, static_cast<std::uint64_t>(i));
    };
    const bool follows = i > 0 && u(1) < 0.5;
    const Index fresh = static_cast<Index>(u(0) * u(2) * static_cast<double>(vocabulary));
    ids.push_back(static_cast<KneserNey::Id>(follows ? (ids.back() * 3 + 1) % vocabulary : fresh));
  }
  return ids;
}

/// Computes equations (1), (2) and (3) of KneserNey directly, with maps of n-grams.
struct Naive {
  int order;
  Index vocabulary;
  std::vector<std::map<Ids, double>> count{};  // [n]
  std::vector<double> discount{};

  Naive(const Ids& text, int n, Index v)
      : order(n), vocabulary(v), count(static_cast<std::size_t>(n) + 1), discount(count.size()) {
    for (std::size_t i = 0; i + count.size() - 1 <= text.size(); ++i)
      ++count.back()[Ids(text.begin() + static_cast<std::ptrdiff_t>(i),
                         text.begin() + static_cast<std::ptrdiff_t>(i + count.size() - 1))];
    for (std::size_t k = count.size() - 1; k > 1; --k)
      for (const auto& [gram, c] : count[k]) ++count[k - 1][Ids(gram.begin() + 1, gram.end())];
    for (std::size_t k = 1; k < count.size(); ++k) {
      double once = 0, twice = 0;
      for (const auto& [gram, c] : count[k]) once += c == 1, twice += c == 2;
      discount[k] = once > 0 ? once / (once + 2 * twice) : 0.5;
    }
  }
  double probability(const Ids& h, KneserNey::Id w) const {
    if (static_cast<int>(h.size()) >= order) return probability(Ids(h.begin() + 1, h.end()), w);
    const std::size_t n = h.size() + 1;
    const double shorter =
        h.empty() ? 1.0 / static_cast<double>(vocabulary) : probability(Ids(h.begin() + 1, h.end()), w);
    double total = 0, types = 0, own = 0;
    for (const auto& [gram, c] : count[n])
      if (Ids(gram.begin(), gram.end() - 1) == h) {
        total += c;
        ++types;
        if (gram.back() == w) own = c;
      }
    if (total == 0) return shorter;
    return (std::max(own - discount[n], 0.0) + discount[n] * types * shorter) / total;
  }
};

Ids context(Index tokens, Index vocabulary, std::uint64_t seed) {
  Ids ids;
  for (Index i = 0; i < tokens; ++i)
    ids.push_back(
        static_cast<KneserNey::Id>(gatefold::uniform<double>(gatefold::Seed{seed}, 9, static_cast<std::uint64_t>(i)) *
                                   static_cast<double>(vocabulary)));
  return ids;
}

}  // namespace

TEST_CASE("KneserNey (1), (2), (3): equal probabilities computed by hand") {
  // In the text a b a b c, ab occurs 2 times, ba and bc once: D_2 = 2 / (2 + 2) = 1/2. The different tokens before a
  // token: b before a, a before b, b before c. Each count is 1, so D_1 = 1. p_1 = (0 + 3 · 1/4) / 3 = 1/4 for all of V
  // = 4.
  const KneserNey model(Ids{0, 1, 0, 1, 2}, 2, 4);
  CHECK(model.discount(2) == 0.5);
  CHECK(model.discount(1) == 1);
  for (KneserNey::Id w = 0; w < 4; ++w) CHECK(model.probability({}, w) == doctest::Approx(0.25).epsilon(1e-13));
  // After b: total 2, types 2: p(a) = (1/2 + 1/2 · 2 · 1/4) / 2.
  const Ids after_a{0}, after_b{3, 3, 1}, after_c{2};
  CHECK(model.probability(after_b, 0) == doctest::Approx(0.375).epsilon(1e-13));
  CHECK(model.probability(after_b, 2) == doctest::Approx(0.375).epsilon(1e-13));
  CHECK(model.probability(after_b, 3) == doctest::Approx(0.125).epsilon(1e-13));
  // The token a occurs twice, only before b: p(b) = (2 − 1/2 + 1/8) / 2, p of any other token (1/8) / 2.
  CHECK(model.probability(after_a, 1) == doctest::Approx(0.8125).epsilon(1e-13));
  CHECK(model.probability(after_a, 0) == doctest::Approx(0.0625).epsilon(1e-13));
  CHECK(model.probability(after_c, 1) == doctest::Approx(0.25).epsilon(1e-13));  // c is never a context
  CHECK(model.bits(Ids{3, 0, 1, 0}) ==
        doctest::Approx(-(std::log2(0.25) + std::log2(0.8125) + std::log2(0.375)) / 3).epsilon(1e-13));
}

TEST_CASE("KneserNey (1), (2), (3): equal loops over maps of n-grams") {
  for (const int order : {1, 2, 3, 5})
    for (const Index vocabulary : {2, 7, 8, 9}) {
      const Ids text = text_of(150, vocabulary, 4);
      const KneserNey model(text, order, vocabulary);
      const Naive naive(text, order, vocabulary);
      CAPTURE(order);
      CAPTURE(vocabulary);
      for (int n = 1; n <= order; ++n)
        CHECK(model.discount(n) == doctest::Approx(naive.discount[static_cast<std::size_t>(n)]).epsilon(1e-14));
      for (std::size_t i = 0; i < 60; ++i) {
        const Ids h = i % 2 ? context(static_cast<Index>(i % 7), vocabulary, i)
                            : Ids(text.begin() + static_cast<std::ptrdiff_t>(i),
                                  text.begin() + static_cast<std::ptrdiff_t>(i + i % 7));
        const auto w = static_cast<KneserNey::Id>(i % static_cast<std::size_t>(vocabulary));
        CHECK(model.probability(h, w) == doctest::Approx(naive.probability(h, w)).epsilon(1e-12));
      }
    }
}

TEST_CASE("KneserNey: probabilities are positive and sum to 1") {
  for (const auto& [order, vocabulary] : {std::pair{5, Index(80)}, {3, Index(2000)}, {1, Index(1)}}) {
    const Ids text = text_of(20'000, vocabulary, 5);
    const KneserNey model(text, order, vocabulary);
    for (std::size_t i = 0; i < 30; ++i) {
      const Ids h = i % 3 == 0 ? context(6, vocabulary, i)
                               : Ids(text.begin() + 100, text.begin() + 101 + static_cast<std::ptrdiff_t>(i));
      double sum = 0, least = 1;
      for (KneserNey::Id w = 0; w < vocabulary; ++w) {
        const double p = model.probability(h, w);
        sum += p;
        least = std::min(least, p);
      }
      CHECK(sum == doctest::Approx(1).epsilon(1e-12));
      CHECK(least > 0);
    }
  }
}

TEST_CASE("KneserNey: longer contexts help; without single counts, D_n is 1/2") {
  const Ids train = text_of(50'000, 50, 6), test = text_of(5'000, 50, 7);
  const double one = KneserNey(train, 1, 50).bits(test), two = KneserNey(train, 2, 50).bits(test);
  CHECK(two < one - 0.5);
  CHECK(one < std::log2(50.0));
  CHECK(KneserNey(Ids{0, 0, 0, 0, 0}, 2, 3).discount(2) == 0.5);
}

TEST_CASE("KneserNey: errors name the wrong argument") {
  const auto said = [](const Ids& text, int order, Index vocabulary) {
    try {
      KneserNey(text, order, vocabulary);
    } catch (const gatefold::ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  CHECK(said({0, 1}, 0, 2) == "KneserNey: order: expected at least 1, got 0");
  CHECK(said({0, 1}, 3, 2) == "KneserNey: text: expected at least 3 tokens, got 2");
  CHECK(said({0, 2}, 1, 2) == "KneserNey: text: expected tokens below 2, got 2");
  CHECK(said({0, -1}, 1, 2) == "KneserNey: text: expected tokens below 2, got -1");
  CHECK(said({0, 1, 2, 3}, 4, 1 << 16) == "KneserNey: order: expected at most 3, got 4");
  CHECK(said({0, 1, 2, 3}, 3, 1 << 21) == "nothing");
}
