#pragma once

#include <cmath>
#include <vector>

#include "gatefold/core/types.hpp"
#include "support/naive_moe.hpp"

/// Paper 002 in plain loops: weights over tokens, mixed probabilities, entropies.
namespace gatefold::naive {

/// Σ −p log p with 0 log 0 = 0
inline double entropy(const std::vector<double>& p) {
  double h = 0;
  for (const double v : p)
    if (v > 0) h -= v * std::log(v);
  return h;
}
/// q = Σ_j w_j r_j, the rows r_j side by side
inline std::vector<double> mixed(const std::vector<double>& w, const std::vector<std::vector<double>>& r) {
  std::vector<double> q(r.empty() ? 0 : r[0].size());
  for (std::size_t j = 0; j < w.size(); ++j)
    for (std::size_t e = 0; e < q.size(); ++e) q[e] += w[j] * r[j][e];
  return q;
}

}  // namespace gatefold::naive
