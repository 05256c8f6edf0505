#pragma once

#include <cmath>
#include <limits>

#include "gatefold/gate/auxiliary/importance.hpp"
#include "gatefold/gate/selection/top_k.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), LastAndNext, AboveThreshold, SmoothLoad, SmoothLoadBackward);

/// A smooth auxiliary loss that rewards an even load of the experts, for gates with Gaussian noise. The load v_e of
/// expert e is the expected number of items that pick e if only the noise of e is drawn again. It is a sum over the
/// items n, with Φ the normal distribution function.
///
///     loss = weight · CV²(v),   v_e = Σ_n Φ((rank[n,e] − t[n,e]) / deviation[n,e])
///
///     t[n,e] = the K-th largest noisy value of item n                              (V-MoE)              (1)
///     t[n,e] = the K-th largest noisy value of the other experts of item n         (excluding)          (2)
///
/// The option `excluding` selects (2) instead of (1). In (2), t is the (K+1)-th largest of all noisy values if e is
/// picked, and otherwise the K-th largest. If K = E, (2) has no threshold: every expert is picked for any noise, v_e =
/// N, and the loss is 0 without gradient. The gradient flows through rank, deviation and t. If no noise was drawn, the
/// loss is 0 without gradient. If a deviation underflows to 0, Φ is 0, 1/2 or 1 depending on the sign of rank − t, and
/// its derivative is taken as 0.
/// Source: (1) Riquelme et al. 2021, arXiv:2106.05974, appendix on auxiliary losses; (2) Shazeer et al. 2017,
/// arXiv:1701.06538, App. A. `shazeer()` uses (2), weight 0.1, and the options of CV² from the code of Shazeer et al.
/// @param a  result of a gate. Its selection must give access to its Gaussian noise (NoisyTopK), and write picks n·K …
///           n·K + K − 1 for item n, best first
/// @throws ArgumentError unless weight and cv.epsilon are finite, cv.ddof and cv.epsilon are at least 0 and, on a host
///         backend with noise, the picks are in the order of the items
/// @cost  2·N·E comparisons and N·E error functions
/// @order v is summed in double, on the CPU in the order of the items
struct Load {
  static constexpr bool needs_picks_by_item = true, needs_noise = true;
  double weight = 0.005;
  bool excluding = false;
  CvSquared cv{};

  static Load shazeer() { return shazeer({.weight = 0.1}); }
  static Load shazeer(Load options) {
    options.excluding = true, options.cv = CvSquared::shazeer();
    return options;
  }

  void validate(Index) const {
    expect_finite("Load", "weight", weight);
    cv.validate("Load");
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    if (!a.noisy.value.data()) return fill(ctx, value, 0);
    slopes(ctx, a, above_threshold(ctx, a), value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    if (!a.noisy.value.data()) return;
    const auto above = above_threshold(ctx, a);
    auto slope = slopes(ctx, a, above, {});
    B::for_each(ctx, a.rank.extent(0),
                functor::SmoothLoadBackward<T, B>{above, slope, d.rank, d.noisy, std::numeric_limits<T>::min()});
  }

 private:
  template <class T, class B>
  functor::AboveThreshold<T, B> above_threshold(auto& ctx, const GateOutcome<T, B>& a) const {
    const Index items = a.rank.extent(0);
    auto last = ctx.template scratch<Index>(items), next = ctx.template scratch<Index>(items);
    B::for_rows(ctx, items,
                functor::LastAndNext<T, B>{a.noisy.value, a.plan.expert, functor::picks_per_item(a), last, next});
    return {a.rank, a.noisy, last, next, excluding, {a.valid}};
  }
  template <class T, class B>
  View<T, 1, B> slopes(auto& ctx, const GateOutcome<T, B>& a, const functor::AboveThreshold<T, B>& above,
                       Out<T, 1, B> value) const {
    validate(a.rank.extent(1));
    const Index experts = a.rank.extent(1);
    auto load = ctx.template scratch<T>(experts), slope = ctx.template scratch<T>(experts);
    B::for_rows(ctx, experts, functor::SmoothLoad<T, B>{above, load});
    B::for_each(ctx, 1, functor::CvSquaredValue<T, B>{load, cv, T(weight), value, slope});
    return slope;
  }
};

namespace functor {

/// Writes the last expert that item n picked (the K-th best) to `last`, and the best expert that the item did not pick
/// (the (K+1)-th best, or −1 if K = E) to `next`.
template <class T, class B>
struct LastAndNext {
  View<const T, 2, B> value;
  View<const Index, 1, B> expert;
  Index k;
  View<Index, 1, B> last, next;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index l = chosen(expert(n * k + k - 1));
    const Index after = RankedRow<T>{&value(n, 0), value.extent(1)}.after(lanes, l);
    if (lanes.lane > 0) return;
    last(n) = l;
    next(n) = after;
  }
};
/// Computes the argument of Φ in Load, (rank[n,e] − t[n,e]) / deviation[n,e]: how far the rank of expert e is above the
/// threshold t for a pick of item n, in standard deviations of the noise.
template <class T, class B>
struct AboveThreshold {
  View<const T, 2, B> rank;
  NoisyRank<const T, B> noisy;
  View<const Index, 1, B> last, next;
  bool excluding;
  Valid<T, B> valid;

  /// Returns the expert at the threshold t[n,e]: item n picks expert e if the noisy value of e is above the noisy value
  /// of the returned expert. Returns −1 if form (2) of Load has no threshold, because all experts are picked.
  GATEFOLD_HD Index threshold(Index n, Index e) const {
    const Index l = last(n);
    const bool taken = !ranks_before(noisy.value(n, l), l, noisy.value(n, e), e);
    return excluding && taken ? next(n) : l;
  }
  /// Returns the difference between rank[n,e] and the noisy value of expert `at`, divided by the deviation of the noise
  /// of expert e. If the deviation is 0, the result is ±∞, or 0 if the difference is 0 too.
  GATEFOLD_HD T deviations(Index n, Index e, Index at) const {
    const T height = rank(n, e) - noisy.value(n, at);
    return height == 0 ? T(0) : height / noisy.deviation(n, e);
  }
};
/// Writes load[e] of the loss Load: the sum over all items, without padding, of the probability that the item picks
/// expert e. The probability is Φ(d), the normal distribution function of d = (rank − threshold) / deviation of the
/// noise.
template <class T, class B>
struct SmoothLoad {
  AboveThreshold<T, B> above;
  View<T, 1, B> load;

  GATEFOLD_HD void operator()(const auto& lanes, Index e) const {
    double total = 0;
    for (Index n = lanes.lane; n < above.rank.extent(0); n += lanes.size) {
      if (above.valid(n) == 0) continue;
      const Index at = above.threshold(n, e);
      total += double(at < 0 ? T(1) : std::erfc(-above.deviations(n, e, at) * T(0.70710678118654752440)) / 2);
    }
    total = lanes.sum(total);
    if (lanes.lane == 0) load(e) = static_cast<T>(total);
  }
};
/// Adds the gradients of the load (SmoothLoad) with respect to the ranks, the deviations of the noise, and the noisy
/// values at the thresholds. One thread computes all experts of an item, because several experts can have the same
/// threshold. An expert whose threshold is its own noisy value gets no gradient. The argument of Φ is then minus the
/// drawn noise, which does not depend on rank and deviation.
template <class T, class B>
struct SmoothLoadBackward {
  AboveThreshold<T, B> above;
  View<const T, 1, B> slope;
  View<T, 2, B> drank;
  NoisyRank<T, B> dnoisy;
  T least;  // an expert whose noise has a smaller standard deviation gets no gradient
  GATEFOLD_HD void operator()(Index n) const {
    if (above.valid(n) == 0) return;
    for (Index e = 0; e < drank.extent(1); ++e) {
      const Index at = above.threshold(n, e);
      if (at < 0 || at == e || above.noisy.deviation(n, e) < least) continue;
      const T u = above.deviations(n, e, at);
      const T d = slope(e) * T(0.39894228040143267794) * std::exp(-u * u / 2) / above.noisy.deviation(n, e);
      if (d == 0) continue;  // d is 0 if u is infinite, and d · u would be NaN
      drank(n, e) += d;
      dnoisy.value(n, at) -= d;
      dnoisy.deviation(n, e) -= d * u;
    }
  }
};

}  // namespace functor

}  // namespace gatefold
