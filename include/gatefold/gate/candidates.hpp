#pragma once

#include "gatefold/tensor/view.hpp"

/// What stands between the parts of a gate.
///
/// A scores policy turns items into logits; one with an Extra takes it as a last argument:
///
///     forward (ctx, params, x, z) const;                                                   // writes z [N, E]
///     backward(ctx, params, x, dz, dx, grads) const;                                       // adds to dx
///
/// A mixing policy turns logits into probabilities, and says what to rank experts by:
///
///     forward (ctx, params, x, z, q, saved, extra) const;                                  // writes q [N, E]
///     rank    (z, saved) const;                                                            // a view [N, E]
///     backward(ctx, params, x, z, q, saved, drank, dq, dz, dx, grads, extra, dextra) const;  // writes dz, adds to dx
///
/// A selection policy turns candidates into a plan:
///
///     forward (ctx, params, candidates, plan, saved, extra) const;
///     backward(ctx, params, candidates, plan, saved, dplan, d, grads, extra) const;        // adds to d.x, d.rank, d.q
///     noisy   (saved) const;                   // optional: what it ranked by, and the deviation of its noise (NoisyRank)
///
/// Options a part left 0 are filled: `model_dim` through with_model_dim, `experts` through with_experts.
namespace gatefold {

/// What a selection chooses from.
template <class T, class B>
struct Candidates {
  View<const T, 2, B> x;        // [N, D] the items
  View<const T, 2, B> rank;     // [N, E] larger is better: logits, or log q after mixing
  View<const T, 2, B> q;        // [N, E] probabilities
  View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; empty: all are items. For selections that compare items
};

/// What a noisy selection ranked by: rank + deviation · noise. Empty views where no noise was drawn.
template <class T, class B>
struct NoisyRank {
  View<T, 2, B> value{}, deviation{};  // [N, E]
};

/// The adjoint of candidates; a selection adds to x, rank and q. `noisy` comes in, from auxiliary losses that looked at
/// NoisyRank; its views are empty where there are none.
template <class T, class B>
struct CandidatesGrad {
  View<T, 2, B> x, rank, q;
  NoisyRank<T, B> noisy{};
};

}  // namespace gatefold
