#pragma once

#include "gatefold/gate/auxiliary/auxiliary.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

/// Ask for an even load of first choices.
///
///     loss = weight · E² · (1/E) Σ_e c_e m_e,   c_e = share of first choices,   m_e = (1/N) Σ_n q[n,e]     (1)
///
/// 1 at perfect balance (times weight). c is a count, and counts dropped picks too: the gradient flows through m alone.
/// With one pick per item this is Balance.
/// Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1; the factor E² is that of FastMoE's code and makes the
/// value independent of E.
/// @param a  of a selection whose picks of item n are n·K … n·K + K − 1, best first
/// @throws ArgumentError unless weight is finite
/// @cost  N·E reads and a counting sort of the first choices
/// @order as Balance
struct GShard {
  static constexpr bool needs_picks_by_item = true;
  double weight = 0.01;

  void validate(Index) const { expect_finite("GShard", "weight", weight); }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    functor::balance(ctx, a, functor::picks_per_item(a), T(weight), false, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = functor::balance(ctx, a, functor::picks_per_item(a), T(weight), false, {});
    B::for_rows(ctx, d.probabilities.extent(0), functor::TotalBackward<T, B>{slope, {a.valid}, d.probabilities});
  }
};

}  // namespace gatefold
