#include "gatefold/core/philox.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>

using namespace gatefold;

namespace {

std::array<std::uint32_t, 4> words(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  const Philox::Words c = Philox::block(key, low, high);
  return {c.w[0], c.w[1], c.w[2], c.w[3]};
}

/// Returns the mean of f(number) over a stream.
template <class F>
double mean(int n, const F& f) {
  double total = 0;
  for (int i = 0; i < n; ++i) total += f(static_cast<std::uint64_t>(i));
  return total / n;
}

constexpr int kNumbers = 200000;

/// Returns five standard deviations of a mean of kNumbers independent values with this variance.
double five_sigma(double variance) { return 5 * std::sqrt(variance / kNumbers); }

}  // namespace

// The expected words are from kat_vectors of Random123, "philox4x32 10". Counter and key begin with the low word.
TEST_CASE("Philox (1): returns the published answers of philox4x32-10") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(words(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint64_t ones = ~std::uint64_t(0);
  CHECK(words(ones, ones, ones) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(Philox::block(0, 0, 0).w[0] == 0x6627e8d5);
}

TEST_CASE("uniform: uses 53 or 24 leading bits of two words") {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto c = words(9, i, 4);
    const std::uint64_t bits = (std::uint64_t(c[1]) << 32) + c[0];
    CHECK(uniform<double>(Seed{9}, 4, i) == std::ldexp(static_cast<double>(bits >> 11), -53));
    CHECK(uniform<float>(Seed{9}, 4, i) == std::ldexp(static_cast<float>(bits >> 40), -24));
  }
}

TEST_CASE_TEMPLATE("uniform: lies in [0, 1) with mean 1/2, variance 1/12", T, float, double) {
  T least = 1, most = 0;
  for (std::uint64_t i = 0; i < kNumbers; ++i) {
    const T u = uniform<T>(Seed{1}, 0, i);
    least = u < least ? u : least;
    most = u > most ? u : most;
  }
  CHECK(least >= 0);
  CHECK(most < 1);
  CHECK(least < T(1e-3));  // fails with probability e^-200
  CHECK(most > T(0.999));
  auto u = [](std::uint64_t i) { return static_cast<double>(uniform<T>(Seed{1}, 0, i)); };
  CHECK(std::abs(mean(kNumbers, u) - 0.5) < five_sigma(1.0 / 12));
  const double variance = mean(kNumbers, [&](std::uint64_t i) { return (u(i) - 0.5) * (u(i) - 0.5); });
  CHECK(std::abs(variance - 1.0 / 12) < five_sigma(1.0 / 180));
  const double neighbours = mean(kNumbers, [&](std::uint64_t i) { return (u(i) - 0.5) * (u(i + 1) - 0.5); });
  CHECK(std::abs(neighbours) < five_sigma(1.0 / 144));
}

TEST_CASE("normal: equals the Box-Muller formula on the first two words") {
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const auto c = words(3, i, 2);
    const double u = (static_cast<double>(c[0]) + 0.5) / 4294967296.0, v = static_cast<double>(c[1]) / 4294967296.0;
    const double expected = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::acos(-1.0) * v);
    CHECK(normal<double>(Seed{3}, 2, i) == doctest::Approx(expected).epsilon(1e-12));
    CHECK(normal<float>(Seed{3}, 2, i) == static_cast<float>(normal<double>(Seed{3}, 2, i)));
  }
}

TEST_CASE_TEMPLATE("normal: has the moments of N(0, 1)", T, float, double) {
  auto moment = [](int power) {
    return mean(kNumbers,
                [&](std::uint64_t i) { return std::pow(static_cast<double>(normal<T>(Seed{2}, 1, i)), power); });
  };
  CHECK(std::abs(moment(1)) < five_sigma(1));
  CHECK(std::abs(moment(2) - 1) < five_sigma(2));
  CHECK(std::abs(moment(3)) < five_sigma(15));
  CHECK(std::abs(moment(4) - 3) < five_sigma(96));
  CHECK(mean(kNumbers, [](std::uint64_t i) { return std::isfinite(normal<T>(Seed{2}, 1, i)); }) == 1);
}

TEST_CASE("streams: forks, steps and seeds are uncorrelated") {
  auto correlation = [](auto&& a, auto&& b) { return mean(kNumbers, [&](std::uint64_t i) { return a(i) * b(i); }); };
  auto stream = [](Seed seed, std::uint64_t step) {
    return [=](std::uint64_t i) { return normal<double>(seed, step, i); };
  };
  const Seed seed{1234};
  const double bound = five_sigma(1);
  CHECK(std::abs(correlation(stream(seed, 0), stream(seed.fork(0), 0))) < bound);
  CHECK(std::abs(correlation(stream(seed.fork(0), 0), stream(seed.fork(1), 0))) < bound);
  CHECK(std::abs(correlation(stream(seed.fork(0).fork(1), 0), stream(seed.fork(1).fork(0), 0))) < bound);
  CHECK(std::abs(correlation(stream(seed, 0), stream(seed, 1))) < bound);
  CHECK(std::abs(correlation(stream(Seed{0}, 0), stream(Seed{1}, 0))) < bound);
  CHECK(correlation(stream(seed, 5), stream(seed, 5)) > 0.9);
}
