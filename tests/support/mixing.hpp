#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gatefold/core/types.hpp"
#include "support/naive_moe.hpp"

/// The equations of paper 002 as plain loops: weights over tokens, mixed probabilities, entropies.
namespace gatefold::naive {

/// Returns Σ −p log p, with 0 log 0 = 0.
inline double entropy(const std::vector<double>& p) {
  double h = 0;
  for (const double v : p)
    if (v > 0) h -= v * std::log(v);
  return h;
}
/// Returns q = Σ_j w_j r_j. The rows r_j are contiguous.
inline std::vector<double> mixed(const std::vector<double>& w, const std::vector<std::vector<double>>& r) {
  std::vector<double> q(r.empty() ? 0 : r[0].size());
  for (std::size_t j = 0; j < w.size(); ++j)
    for (std::size_t e = 0; e < q.size(); ++e) q[e] += w[j] * r[j][e];
  return q;
}

/// Returns log Σ_j w_j r_j[e], from contiguous rows log r_j. Works even if the sum is too small for a double.
inline double log_mixed(const std::vector<double>& w, const std::vector<std::vector<double>>& log_r, std::size_t e) {
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (std::size_t j = 0; j < w.size(); ++j)
    if (w[j] > 0) top = std::max(top, std::log(w[j]) + log_r[j][e]);
  for (std::size_t j = 0; j < w.size(); ++j)
    if (w[j] > 0) total += std::exp(std::log(w[j]) + log_r[j][e] - top);
  return top + std::log(total);
}
/// Returns the logarithm of the softmax of z.
inline std::vector<double> log_softmax(std::vector<double> z) {
  const double top = *std::max_element(z.begin(), z.end());
  double total = 0;
  for (const double v : z) total += std::exp(v - top);
  for (double& v : z) v -= top + std::log(total);
  return z;
}

}  // namespace gatefold::naive
