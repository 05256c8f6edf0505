#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/expert_outputs.hpp>
#include <gatefold/papers/signal_mixture.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <vector>

#include "setting.hpp"

namespace studies::expert_count {

using namespace gatefold;
using Matrix = std::vector<std::vector<double>>;
using Sample = SignalMixture::Sample<float, Cpu>;
using Signals = SignalMixture::Signals<float, Cpu>;

/// Percentage of correct items among all items, and for each cluster. For a cluster without items it is NaN.
struct Accuracy {
  double all = 0;
  std::vector<double> cluster{};
};
/// @param right  [N] 1 for a correct item, 0 for a wrong one: the result of right() below
inline Accuracy accuracy(const std::vector<double>& right, View<const Index, 1, Cpu> cluster) {
  std::vector<double> hit(kClusters), count(kClusters);
  for (std::size_t n = 0; n < right.size(); ++n) {
    const auto k = static_cast<std::size_t>(cluster(static_cast<Index>(n)));
    hit[k] += right[n];
    ++count[k];
  }
  Accuracy a;
  double hits = 0;
  for (std::size_t k = 0; k < hit.size(); ++k) {
    hits += hit[k];
    a.cluster.push_back(100 * hit[k] / count[k]);
  }
  a.all = 100 * hits / static_cast<double>(right.size());
  return a;
}
/// Returns 1 if the score of an item (label ±1 times output) is above 0, otherwise 0. A score of 0 is an error, as in
/// the paper. Returns NaN if the score is NaN.
inline double right(double score) { return std::isnan(score) ? score : score > 0 ? 1 : 0; }
/// Returns 1 for each correct item, 0 for each wrong one, [N].
inline std::vector<double> right(View<const float, 2, Cpu> output, View<const float, 2, Cpu> target) {
  std::vector<double> hit(static_cast<std::size_t>(output.extent(0)));
  for (Index n = 0; n < output.extent(0); ++n) hit[static_cast<std::size_t>(n)] = right(target(n, 0) * output(n, 0));
  return hit;
}

/// Returns the error of each of the M experts on each of the K clusters, [M][K]: the share of wrong items among all
/// items of the cluster, whether or not they are routed to the expert. It is NaN for a cluster without items.
template <class M, class P>
Matrix cluster_errors(Cpu::Context& ctx, const M& mixture, const P& params, const Sample& sample) {
  constexpr Index part = 1000;  // items of a part; all at once would need gigabytes
  const Index items = sample.x.extent(0);
  Matrix errors(static_cast<std::size_t>(mixture.experts()), std::vector<double>(kClusters));
  std::vector<double> count(kClusters);
  for (Index first = 0; first < items; first += part) {
    const Index n = std::min(part, items - first);
    const auto f = expert_outputs<M, const float, Cpu>(ctx, mixture, params, sample.x.view().rows(first, n));
    for (Index i = 0; i < n; ++i) {
      const auto k = static_cast<std::size_t>(sample.cluster(first + i));
      ++count[k];
      for (std::size_t m = 0; m < errors.size(); ++m)
        errors[m][k] += 1 - right(sample.target(first + i, 0) * f(i, static_cast<Index>(m), Index(0)));
    }
  }
  for (auto& row : errors)
    for (std::size_t k = 0; k < row.size(); ++k) row[k] /= count[k];
  return errors;
}

/// Returns the cluster of each expert m: argmax_k max_{j,p} ⟨w_{m,j,p}, v_k⟩, with its weights w for filter j and patch
/// p, and the signal v_k of cluster k. With the initial weights, this is definition 2 of the paper.
/// @param weight [M, P, d, J] in
inline std::vector<Index> strongest(Cpu::Context& ctx, View<const float, 4, Cpu> weight, const Signals& signals) {
  const Index experts = weight.extent(0), parts = weight.extent(1), dim = weight.extent(2), filters = weight.extent(3);
  Tensor<float, 3, Cpu> neurons(experts, parts * filters, dim);
  for (Index m = 0; m < experts; ++m)
    for (Index p = 0; p < parts; ++p)
      for (Index i = 0; i < dim; ++i)
        for (Index j = 0; j < filters; ++j) neurons(m, p * filters + j, i) = weight(m, p, i, j);
  return metric::specialisation(ctx, neurons.view(), signals.feature).signal;
}

/// Returns the share of the items of each cluster that goes to each expert, [K][M]. For a cluster without items it is
/// NaN.
inline Matrix shares(const metric::RoutingTable& table) {
  Matrix share(static_cast<std::size_t>(table.classes), std::vector<double>(static_cast<std::size_t>(table.experts)));
  for (Index k = 0; k < table.classes; ++k)
    for (Index m = 0; m < table.experts; ++m)
      share[static_cast<std::size_t>(k)][static_cast<std::size_t>(m)] =
          table.of_class(k) > 0 ? table.share_of_class(k, m) : std::nan("");
  return share;
}

}  // namespace studies::expert_count
