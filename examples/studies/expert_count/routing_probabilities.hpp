#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>
#include <vector>

namespace studies::expert_count {

/// Returns the n nodes and weights of Gauss–Legendre quadrature on [−1, 1]. It integrates polynomials up to degree
/// 2n − 1 exactly.
inline std::vector<std::pair<double, double>> gauss_legendre(std::size_t n) {
  std::vector<std::pair<double, double>> rule(n);
  for (std::size_t i = 0; i < n; ++i) {
    double x = std::cos(std::numbers::pi * (static_cast<double>(i) + 0.75) / (static_cast<double>(n) + 0.5)), slope = 1;
    for (int step = 0; step < 100; ++step) {
      double p = 1, before = 0;
      for (std::size_t j = 0; j < n; ++j) {
        const double k = static_cast<double>(j);
        before = std::exchange(p, ((2 * k + 1) * x * p - k * before) / (k + 1));
      }
      slope = static_cast<double>(n) * (x * p - before) / (x * x - 1);
      const double next = x - p / slope;
      if (std::abs(std::exchange(x, next) - next) < 1e-15) break;
    }
    rule[i] = {x, 2 / ((1 - x * x) * slope * slope)};
  }
  return rule;
}

/// Computes the probability P(argmax_m' (h_m' + r_m') = m) of each expert m, with scores h and independent noise r ~
/// U[0, 1). It is exact up to rounding.
///
///     p_m = ∫_{h_m}^{h_m + 1} Π_{m' ≠ m} F(s − h_m') ds,   F(z) = min(max(z, 0), 1)
///
/// For s below the largest h, a factor is 0. Above the largest h, the integrand is a polynomial between the points
/// h_i + 1.
class RoutingProbabilities {
 public:
  explicit RoutingProbabilities(std::size_t experts) : rule_(gauss_legendre(experts / 2 + 1)) {}

  std::vector<double> operator()(const std::vector<double>& h) const {
    const std::size_t experts = h.size();
    const double top = *std::max_element(h.begin(), h.end());
    std::vector<double> ends{top};
    for (const double v : h)
      if (v + 1 > top) ends.push_back(v + 1);
    std::sort(ends.begin(), ends.end());
    std::vector<double> p(experts), before(experts + 1);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
      const double half = (ends[i + 1] - ends[i]) / 2, middle = (ends[i + 1] + ends[i]) / 2;
      if (half <= 0) continue;
      for (const auto& [x, w] : rule_) {
        const double s = middle + half * x;
        before[0] = half * w;
        for (std::size_t m = 0; m < experts; ++m) before[m + 1] = before[m] * std::min(s - h[m], 1.0);
        double after = 1;
        for (std::size_t m = experts; m-- > 0; after *= std::min(s - h[m], 1.0))
          if (s < h[m] + 1) p[m] += before[m] * after;
      }
    }
    return p;
  }

 private:
  std::vector<std::pair<double, double>> rule_;
};

/// Returns the routing probabilities without noise: 1 for the expert with the largest score, otherwise 0.
inline std::vector<double> without_noise(const std::vector<double>& h) {
  std::vector<double> p(h.size());
  p[static_cast<std::size_t>(std::max_element(h.begin(), h.end()) - h.begin())] = 1;
  return p;
}

}  // namespace studies::expert_count
