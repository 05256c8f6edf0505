#pragma once

#include <cmath>

#include "gatefold/gate/auxiliary/auxiliary.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SquaredLogSumExp, ScaleByCount, ZLossBackward);

/// An auxiliary loss that keeps the logits z [N, E] of a gate small. It is the mean squared log-sum-exp of the items.
///
///     loss = weight · (1/N) Σ_n (log Σ_e exp z[n,e])²                                                    (1)
///
/// Source: Zoph et al. 2022, arXiv:2202.08906, eq. (5).
/// @throws ArgumentError unless weight is finite
/// @cost  N·E exponentials
/// @order squares are summed within blocks of items, then over the blocks (`reduce` of the backend)
struct ZLoss {
  double weight = 0.001;

  void validate(Index) const { expect_finite("ZLoss", "weight", weight); }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    auto count = functor::count_valid(ctx, a);
    fill(ctx, value, 0);
    B::template reduce<T>(ctx, a.logits.extent(0), functor::SquaredLogSumExp<T, B>{a.logits, {a.valid}}, value.data());
    B::for_each(ctx, 1, functor::ScaleByCount<T, B>{T(weight), count, value});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto count = functor::count_valid(ctx, a);
    B::for_each(ctx, a.logits.extent(0),
                functor::ZLossBackward<T, B>{{a.logits, {a.valid}}, T(weight), count, d.logits});
  }
};

namespace functor {

/// Returns the squared log-sum-exp of the logits of item n, (log Σ_e exp z[n,e])², or 0 if the item is padding.
template <class T, class B>
struct SquaredLogSumExp {
  View<const T, 2, B> z;
  Valid<T, B> valid;
  /// The sum Σ_e exp z[n,e] as two numbers: the sum is exp(top) · total, with `top` the largest logit. ZLossBackward
  /// reads the two numbers separately, because the single number top + log(total) loses digits of log(total) if `top`
  /// is large.
  struct Sum {
    T top, total;  // total = Σ_e exp(z[n,e] − top)
    GATEFOLD_HD T log() const { return top + std::log(total); }
  };
  GATEFOLD_HD Sum sum_exp(Index n) const {
    T top = z(n, 0), total = 0;
    for (Index e = 1; e < z.extent(1); ++e) top = z(n, e) > top ? z(n, e) : top;
    for (Index e = 0; e < z.extent(1); ++e) total += std::exp(z(n, e) - top);
    return {top, total};
  }
  GATEFOLD_HD T operator()(Index n) const {
    if (valid(n) == 0) return 0;
    const T v = sum_exp(n).log();
    return v * v;
  }
};
template <class T, class B>
struct ScaleByCount {
  T weight;
  View<const T, 1, B> count;
  View<T, 1, B> value;
  GATEFOLD_HD void operator()(Index) const { value(0) = count(0) > 0 ? weight * value(0) / count(0) : T(0); }
};
template <class T, class B>
struct ZLossBackward {
  SquaredLogSumExp<T, B> row;
  T weight;
  View<const T, 1, B> count;
  View<T, 2, B> dz;
  GATEFOLD_HD void operator()(Index n) const {
    if (row.valid(n) == 0) return;
    const auto sum = row.sum_exp(n);
    const T scale = 2 * weight * sum.log() / count(0) / sum.total;
    for (Index e = 0; e < dz.extent(1); ++e) dz(n, e) += scale * std::exp(row.z(n, e) - sum.top);
  }
};

}  // namespace functor

}  // namespace gatefold
