#pragma once

#include <cmath>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Softmax of rows, shared by mixings, selections and losses.
namespace gatefold::fn {

/// p[n,:] = softmax(z[n,:])
template <class T, class B>
struct Softmax {
  View<const T, 2, B> z;
  View<T, 2, B> p;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index columns = z.extent(1);
    T top = z(n, 0);
    for (Index e = lanes.lane; e < columns; e += lanes.size) top = z(n, e) > top ? z(n, e) : top;
    top = lanes.max(top);
    T total = 0;
    for (Index e = lanes.lane; e < columns; e += lanes.size) total += p(n, e) = std::exp(z(n, e) - top);
    total = lanes.sum(total);
    for (Index e = lanes.lane; e < columns; e += lanes.size) p(n, e) /= total;
  }
};

/// log p[n,:] = z[n,:] − log Σ_e exp z[n,e], exact where p underflows
template <class T, class B>
struct LogSoftmax {
  View<const T, 2, B> z;
  View<T, 2, B> log_p;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index columns = z.extent(1);
    T top = z(n, 0);
    for (Index e = lanes.lane; e < columns; e += lanes.size) top = z(n, e) > top ? z(n, e) : top;
    top = lanes.max(top);
    T total = 0;
    for (Index e = lanes.lane; e < columns; e += lanes.size) total += std::exp(z(n, e) - top);
    const T normaliser = top + std::log(lanes.sum(total));
    for (Index e = lanes.lane; e < columns; e += lanes.size) log_p(n, e) = z(n, e) - normaliser;
  }
};

/// dz[n,e] = p[n,e] (dp[n,e] − Σ_f p[n,f] dp[n,f])
template <class T, class B>
struct SoftmaxBackward {
  View<const T, 2, B> p, dp;
  View<T, 2, B> dz;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index columns = p.extent(1);
    T dot = 0;
    for (Index e = lanes.lane; e < columns; e += lanes.size) dot += p(n, e) * dp(n, e);
    dot = lanes.sum(dot);
    for (Index e = lanes.lane; e < columns; e += lanes.size) dz(n, e) = p(n, e) * (dp(n, e) - dot);
  }
};

}  // namespace gatefold::fn
