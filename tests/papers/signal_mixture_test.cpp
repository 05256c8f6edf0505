#include "gatefold/papers/signal_mixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

namespace {

struct Drawn {
  SignalMixture data;
  SignalMixture::Signals<double, Cpu> signals;
  SignalMixture::Sample<double, Cpu> s;

  Drawn(const SignalMixture& of, Index items, int threads = 1, std::uint64_t seed = 3) : data(of) {
    Cpu::Context ctx(threads);
    signals = data.signals<double, Cpu>(ctx, Seed{seed});
    s = data.draw<double, Cpu>(ctx, signals, Seed{seed + 1}, items);
  }
  Index items() const { return s.x.extent(0); }
  double x(Index n, Index l, Index j) const { return s.x(n, l * data.model_dim + j); }
  /// Returns ⟨x^(l), v⟩.
  double along(Index n, Index l, const Tensor<double, 2, Cpu>& v, Index k) const {
    double dot = 0;
    for (Index j = 0; j < data.model_dim; ++j) dot += x(n, l, j) * v(k, j);
    return dot;
  }
  double squares(Index n, Index l) const {
    double sum = 0;
    for (Index j = 0; j < data.model_dim; ++j) sum += x(n, l, j) * x(n, l, j);
    return sum;
  }
};

/// Returns Σ (count − expected)² / expected.
double chi_squared(const std::vector<double>& counts, const std::vector<double>& expected) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i)
    sum += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
  return sum;
}
/// Checks that key(n) takes the values 0 … keys − 1 equally often: χ² is below its mean plus 5 standard deviations.
void check_uniform(const Drawn& d, Index keys, const std::function<Index(Index)>& key) {
  std::vector<double> counts(static_cast<std::size_t>(keys), 0.0);
  for (Index n = 0; n < d.items(); ++n) counts.at(static_cast<std::size_t>(key(n))) += 1;
  const double freedom = static_cast<double>(keys - 1),
               share = static_cast<double>(d.items()) / static_cast<double>(keys);
  CHECK(chi_squared(counts, std::vector<double>(counts.size(), share)) < freedom + 5 * std::sqrt(2 * freedom));
}
struct Moments {
  double mean = 0, variance = 0, low = 1e300, high = -1e300;
};
Moments moments(const std::vector<double>& v) {
  Moments m;
  const double n = static_cast<double>(v.size());
  for (const double a : v) m.mean += a / n, m.low = std::min(m.low, a), m.high = std::max(m.high, a);
  for (const double a : v) m.variance += (a - m.mean) * (a - m.mean) / n;
  return m;
}
/// Checks range, mean and variance of U[low, high) to 5 standard errors.
void check_uniform_law(const std::vector<double>& v, Amplitude law) {
  const Moments m = moments(v);
  const double width = law.high - law.low, n = static_cast<double>(v.size());
  CHECK(m.low >= law.low - 1e-12);
  CHECK(m.high <= law.high + 1e-12);
  CHECK(m.low < law.low + 0.01 * width);
  CHECK(m.high > law.high - 0.01 * width);
  CHECK(std::abs(m.mean - (law.low + law.high) / 2) < 5 * width / std::sqrt(12 * n));
  CHECK(std::abs(m.variance - width * width / 12) < 5 * width * width / std::sqrt(180 * n));
}

}  // namespace

TEST_CASE("SignalMixture: features and centers are orthonormal; seeds change them") {
  Cpu::Context ctx(1);
  for (const auto& [clusters, dim] : {std::pair<Index, Index>{4, 50}, {2, 4}, {25, 50}}) {
    const SignalMixture data{.clusters = clusters, .model_dim = dim};
    const auto s = data.signals<double, Cpu>(ctx, Seed{9}), other = data.signals<double, Cpu>(ctx, Seed{10});
    const auto row = [&, k = clusters](Index r) { return r < k ? &s.feature(r, 0) : &s.center(r - k, 0); };
    for (Index a = 0; a < 2 * clusters; ++a)
      for (Index b = 0; b <= a; ++b) {
        double dot = 0;
        for (Index j = 0; j < dim; ++j) dot += row(a)[j] * row(b)[j];
        CHECK(std::abs(dot - (a == b ? 1 : 0)) < 1e-14);
      }
    CHECK(s.feature(0, 0) != other.feature(0, 0));
  }
}

TEST_CASE("SignalMixture (1): patches hold the signals that `place` names") {
  for (const SignalMixture& data :
       {SignalMixture{}, SignalMixture::expert_count(4), SignalMixture::expert_count(8), SignalMixture::reference(2),
        SignalMixture{.clusters = 2, .model_dim = 5, .length = 3}}) {
    const Drawn d(data, 2000);
    for (Index n = 0; n < d.items(); ++n) {
      const Index k = d.s.cluster(n), other = d.s.distractor(n);
      const Index at_center = d.s.place(n, 0), at_feature = d.s.place(n, 1), at_distractor = d.s.place(n, 2);
      REQUIRE((at_center != at_feature && at_feature != at_distractor && at_distractor != at_center));
      REQUIRE(k != other);
      const double y = d.s.target(n, 0), alpha = y * d.along(n, at_feature, d.signals.feature, k) / data.scale,
                   beta = d.along(n, at_center, d.signals.center, k) / data.scale,
                   gamma = std::abs(d.along(n, at_distractor, d.signals.feature, other)) / data.scale;
      REQUIRE((y == 1 || y == -1));
      for (const auto& [v, law, l] :
           {std::tuple{alpha, data.feature, at_feature}, std::tuple{beta, data.center, at_center},
            std::tuple{gamma, data.distractor, at_distractor}}) {
        REQUIRE(v >= law.low - 1e-12);
        REQUIRE(v <= law.high + 1e-12);
        REQUIRE(std::abs(d.squares(n, l) - v * v * data.scale * data.scale) <
                1e-10 * data.scale * data.scale);  // the patch has no other part
      }
    }
  }
}

TEST_CASE("SignalMixture: labels, signs, cluster pairs and places are uniform") {
  const Drawn d(SignalMixture::expert_count(5), 40000);
  check_uniform(d, 2, [&](Index n) { return d.s.target(n, 0) > 0; });
  const auto sign = [&](Index n) { return d.along(n, d.s.place(n, 2), d.signals.feature, d.s.distractor(n)) > 0; };
  check_uniform(d, 2, sign);
  check_uniform(d, 4, [&](Index n) { return Index(d.s.target(n, 0) > 0) * 2 + sign(n); });  // independent of each other
  check_uniform(d, 12, [&](Index n) {
    const Index k = d.s.cluster(n), other = d.s.distractor(n);
    return k * 3 + (other < k ? other : other - 1);
  });
  check_uniform(d, 60, [&](Index n) {  // ordered triples of 5 places
    const Index a = d.s.place(n, 0), b = d.s.place(n, 1), c = d.s.place(n, 2);
    return a * 12 + (b < a ? b : b - 1) * 3 + (c - (c > a) - (c > b));
  });
}

TEST_CASE("SignalMixture: amplitudes are uniform in their ranges") {
  const SignalMixture data = SignalMixture::reference(3);
  const Drawn d(data, 20000);
  std::vector<double> alpha, beta, gamma;
  for (Index n = 0; n < d.items(); ++n) {
    alpha.push_back(d.s.target(n, 0) * d.along(n, d.s.place(n, 1), d.signals.feature, d.s.cluster(n)) / 10);
    beta.push_back(d.along(n, d.s.place(n, 0), d.signals.center, d.s.cluster(n)) / 10);
    gamma.push_back(std::abs(d.along(n, d.s.place(n, 2), d.signals.feature, d.s.distractor(n))) / 10);
  }
  check_uniform_law(alpha, {0.5, 2});
  check_uniform_law(beta, {1, 2});
  check_uniform_law(gamma, {0.5, 2});
}

TEST_CASE("SignalMixture: places without signal are N(0, σ²/d) times scale") {
  for (const double sigma : {0.0, 1.0, 3.0}) {
    SignalMixture data{.length = 5, .noise = sigma};
    data.scale = 2;
    const Drawn d(data, 4000);
    std::vector<double> v;
    for (Index n = 0; n < d.items(); ++n)
      for (Index l = 0; l < 5; ++l)
        if (l != d.s.place(n, 0) && l != d.s.place(n, 1) && l != d.s.place(n, 2))
          for (Index j = 0; j < 50; ++j) v.push_back(d.x(n, l, j));
    REQUIRE(v.size() == std::size_t(4000 * 2 * 50));
    const Moments m = moments(v);
    const double variance = 4 * sigma * sigma / 50, count = static_cast<double>(v.size());
    CHECK(std::abs(m.mean) <= 5 * std::sqrt(variance / count));
    CHECK(std::abs(m.variance - variance) <= 5 * variance * std::sqrt(2 / count));
    double fourth = 0;
    for (const double a : v) fourth += a * a * a * a / count;
    CHECK(std::abs(fourth - 3 * variance * variance) <= 5 * variance * variance * std::sqrt(96 / count));
  }
}

TEST_CASE("SignalMixture: P(cluster k) is proportional to decay^k") {
  for (const double decay : {0.5, 2.0}) {
    const Drawn d({.decay = decay}, 20000);
    std::vector<double> counts(4, 0.0), expected;
    for (Index n = 0; n < d.items(); ++n) counts[std::size_t(d.s.cluster(n))] += 1;
    const double total = 1 + decay + decay * decay + decay * decay * decay;
    for (int k = 0; k < 4; ++k) expected.push_back(20000 * std::pow(decay, k) / total);
    CHECK(chi_squared(counts, expected) < 3 + 5 * std::sqrt(6.0));
  }
}

TEST_CASE("SignalMixture: an item depends on neither threads nor later items") {
  const auto same = [](const auto& a, const auto& b, Index count) {
    return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(count) * sizeof(*a.data())) == 0;
  };
  const SignalMixture data = SignalMixture::expert_count();
  const Drawn all(data, 500), three(data, 500, 3), few(data, 7);
  CHECK(same(all.s.x, three.s.x, all.s.x.size()));
  CHECK(same(all.s.x, few.s.x, few.s.x.size()));
  CHECK(same(all.s.target, few.s.target, 7));
  CHECK(same(all.s.cluster, few.s.cluster, 7));
  CHECK(same(all.s.place, few.s.place, 21));
  const Drawn other(data, 7, 1, 4);
  CHECK_FALSE(same(other.s.x, few.s.x, few.s.x.size()));
  CHECK(Drawn(data, 0).s.x.extent(0) == 0);
}

TEST_CASE("SignalMixture: reference() has the settings of Chen et al.") {
  for (Index s = 1; s <= 4; ++s) {
    const SignalMixture data = SignalMixture::reference(s);
    CHECK(data.noise == (s == 2 || s == 4 ? 2 : 1));
    CHECK(data.distractor.high == (s >= 3 ? 2 : 3));
    CHECK((data.scale == 10 && data.clusters == 4 && data.model_dim == 50 && data.length == 4));
    CHECK((data.distractor.low == 0.5 && data.feature.low == 0.5 && data.feature.high == 2));
    CHECK((data.center.low == 1 && data.center.high == 2));
  }
  CHECK_THROWS_WITH_AS(SignalMixture::reference(5), "SignalMixture.reference: setting: expected 1 to 4, got 5",
                       ArgumentError);
}

TEST_CASE("SignalMixture: wrong options throw") {
  Cpu::Context ctx(1);
  const auto refused = [&](const SignalMixture& data, const char* sentence) {
    CHECK_THROWS_WITH_AS((data.signals<float, Cpu>(ctx, Seed{1})), sentence, ArgumentError);
  };
  refused({.clusters = 1}, "SignalMixture: clusters: expected at least 2, got 1");
  refused({.clusters = 26}, "SignalMixture: model_dim: expected at least 2 * clusters = 52, got 50");
  refused({.length = 2}, "SignalMixture: length: expected at least 3, got 2");
  refused({.noise = -1}, "SignalMixture: noise: expected at least 0, got -1");
  refused({.decay = 0}, "SignalMixture: decay: expected more than 0, got 0");
  refused({.decay = INFINITY}, "SignalMixture: decay: expected a finite number, got inf");
  refused({.noise = INFINITY}, "SignalMixture: noise: expected a finite number, got inf");
  refused({.scale = NAN}, "SignalMixture: scale: expected a finite number, got nan");
  refused({.feature = {NAN, 1}}, "SignalMixture: feature.low: expected a finite number, got nan");
  refused({.feature = {2, 1}}, "SignalMixture: feature.high: expected at least feature.low = 2, got 1");
  refused({.center = {1, NAN}}, "SignalMixture: center.high: expected a finite number, got nan");
  refused({.distractor = {-INFINITY, 1}}, "SignalMixture: distractor.low: expected a finite number, got -inf");
  const SignalMixture data{};
  const auto signals = data.signals<float, Cpu>(ctx, Seed{1});
  CHECK_THROWS_WITH_AS((SignalMixture{.clusters = 3}.draw<float, Cpu>(ctx, signals, Seed{1}, 5)),
                       "SignalMixture.draw: signals.feature: expected [3, 50], got [4, 50]", ArgumentError);
  CHECK_THROWS_AS((data.draw<float, Cpu>(ctx, signals, Seed{1}, -1)), ArgumentError);
}
