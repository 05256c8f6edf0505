#pragma once

#include "gatefold/tensor/view.hpp"

/// What stands between the parts of a gate.
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
///     backward(ctx, params, candidates, plan, saved, dplan, d, grads, extra) const;        // adds to d
namespace gatefold {

/// What a selection chooses from.
template <class T, class B>
struct Candidates {
  View<const T, 2, B> x;        // [N, D] the items
  View<const T, 2, B> rank;     // [N, E] larger is better: logits, or log q after mixing
  View<const T, 2, B> q;        // [N, E] probabilities
};

/// Its adjoint; a selection adds to what it used.
template <class T, class B>
struct CandidatesGrad {
  View<T, 2, B> x, rank, q;
};

}  // namespace gatefold
