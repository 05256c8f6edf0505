#pragma once

#include <vector>

#include "gatefold/core/types.hpp"

namespace gatefold::naive {

/// Computes the outputs f_o(x) = Σ_j Σ_p act(⟨w_{j,p}, x^(p)⟩ + b_{j,p}) of one item x, by loops. The sums are over the
/// patches x^(p) [dim] and over the filters j of output o: output 0 has the first filters / outputs filters, and so on.
/// @param w  function (p, d, j) that returns a weight
/// @param b  function (p, j) that returns a bias
template <class W, class Bias, class Act>
std::vector<double> patches(const std::vector<double>& x, Index patches, Index dim, Index filters, Index outputs,
                            const W& w, const Bias& b, const Act& act) {
  std::vector<double> z(static_cast<std::size_t>(outputs), 0.0);
  for (Index j = 0; j < filters; ++j)
    for (Index p = 0; p < patches; ++p) {
      double v = b(p, j);
      for (Index d = 0; d < dim; ++d) v += x[static_cast<std::size_t>(p * dim + d)] * w(p, d, j);
      z[static_cast<std::size_t>(j / (filters / outputs))] += act(v);
    }
  return z;
}

}  // namespace gatefold::naive
