#pragma once

#include "gatefold/gate/auxiliary/balance_loss.hpp"

namespace gatefold {

/// An auxiliary loss that rewards an even load of E experts, in which only the first choice (best expert) of each of N
/// items counts. q [N, E] are the probabilities of the router.
///
///     loss = weight · E² · (1/E) Σ_e c_e m_e,   c_e = share of first choices,   m_e = (1/N) Σ_n q[n,e]     (1)
///
/// At perfect balance, the loss is `weight`. c_e counts the first choices of expert e, including dropped ones. A count
/// has no derivative, so the gradient flows only through m. With one pick per item the loss is equal to Balance.
/// Source: Lepikhin et al. 2020, arXiv:2006.16668, algorithm 1. The factor E² is from FastMoE's code; it makes the
/// value independent of E.
/// @param a  result of a gate. Its selection must write picks n·K … n·K + K − 1 for item n, best first
/// @throws ArgumentError unless weight is finite
/// @cost  N·E reads and a counting sort of the first choices
/// @order first choices are counted in integers; m is summed in double, in the order of the items
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
