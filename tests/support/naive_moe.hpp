#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gatefold/core/types.hpp"

/// The equations of gates and experts for one item, as loops in double over vectors. From the library, they use only
/// the elements of tensors.
namespace gatefold::naive {

using Row = std::vector<double>;

template <class M>
Row row(const M& matrix, Index n) {
  Row r;
  for (Index j = 0; j < matrix.extent(1); ++j) r.push_back(static_cast<double>(matrix(n, j)));
  return r;
}

/// Computes z = x W + b. w(d, e) returns an element of the weight [D, E].
template <class W, class Bias>
Row affine(const Row& x, Index columns, const W& w, const Bias& b) {
  Row z;
  for (Index j = 0; j < columns; ++j) {
    double sum = b(j);
    for (std::size_t d = 0; d < x.size(); ++d) sum += x[d] * w(static_cast<Index>(d), j);
    z.push_back(sum);
  }
  return z;
}

inline Row softmax(const Row& z) {
  const double top = *std::max_element(z.begin(), z.end());
  Row p;
  for (const double v : z) p.push_back(std::exp(v - top));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= total;
  return p;
}

/// Returns the indices of the k largest values. NaN comes last, and ties go to the lower index.
inline std::vector<Index> best(const Row& rank, Index k) {
  std::vector<Index> order(rank.size());
  std::iota(order.begin(), order.end(), Index(0));
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
    const double u = rank[static_cast<std::size_t>(a)], v = rank[static_cast<std::size_t>(b)];
    return std::isnan(v) ? !std::isnan(u) : u > v;
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

/// Returns the logits of LinearScores for one item with one position.
template <class ScoresParams>
Row logits(const ScoresParams& p, const Row& x) {
  return affine(
      x, p.bias.extent(0), [&](Index d, Index e) { return double(p.weight(d, e)); },
      [&](Index e) { return double(p.bias(e)); });
}

/// Computes z = act(x U_e + a_e) V_e + b_e.
template <class MlpParams, class Act>
Row mlp(const MlpParams& p, Index e, const Row& x, Act act) {
  const bool bias = p.up_bias.extent(1) > 0;
  Row h = affine(
      x, p.up.extent(2), [&](Index d, Index j) { return double(p.up(e, d, j)); },
      [&](Index j) { return bias ? double(p.up_bias(e, j)) : 0.0; });
  for (double& v : h) v = act(v);
  return affine(
      h, p.down.extent(2), [&](Index d, Index j) { return double(p.down(e, d, j)); },
      [&](Index j) { return bias ? double(p.down_bias(e, j)) : 0.0; });
}

inline double gelu(double v) { return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))); }
inline double silu(double v) { return v / (1 + std::exp(-v)); }

/// Computes u = Σ w · expert over the k best experts. The weights w are the softmax over the picked logits if
/// `renormalise` is true, otherwise the softmax over all logits.
template <class MixtureParams, class Expert>
Row mixture(const MixtureParams& p, const Row& x, Index k, bool renormalise, Expert expert) {
  const Row z = logits(p.gate.scores, x), q = softmax(z);
  double total = 0;
  for (const Index e : best(z, k)) total += q[static_cast<std::size_t>(e)];
  Row u;
  for (const Index e : best(z, k)) {
    const Row out = expert(e, x);
    u.resize(out.size(), 0.0);
    for (std::size_t j = 0; j < out.size(); ++j)
      u[j] += q[static_cast<std::size_t>(e)] / (renormalise ? total : 1) * out[j];
  }
  return u;
}

}  // namespace gatefold::naive
