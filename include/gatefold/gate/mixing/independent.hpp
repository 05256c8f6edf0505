#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"

namespace gatefold {

namespace detail_::mixing {

/// A mixing without parameters: it computes the probabilities q[n,:] only from the logits of item n, and ranks the
/// experts by the logits.
/// @tparam ForwardT, BackwardT  functors for one row; ForwardT writes q, BackwardT the gradient dz of the logits
template <template <class, class> class ForwardT, template <class, class> class BackwardT>
struct EachItem {
  static constexpr bool items_adjoint_is_optional = true, ranks_are_logits = true;

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> z, Out<T, 2, B> q,
               Nothing<T, B>&, const Nothing<T, B>&) const {
    B::for_rows(ctx, z.extent(0), rows<T, B>(z, q));
  }
  template <class T, class B>
  ForwardT<T, B> rows(View<const T, 2, B> z, Out<T, 2, B> q) const {
    return {z, q};
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B> z, const Nothing<T, B>&) const {
    return z;
  }
  /// Writes dz, the gradient of the logits.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B>, In<T, 2, B> q,
                const Nothing<T, B>&, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B>, Nothing<T, B>&,
                const Nothing<T, B>&, Nothing<T, B>&) const {
    B::for_rows(ctx, q.extent(0), rows_backward<T, B>(q, dq, dz));
    add(ctx, drank, dz);
  }
  template <class T, class B>
  BackwardT<T, B> rows_backward(View<const T, 2, B> q, In<T, 2, B> dq, Out<T, 2, B> dz) const {
    return {q, dq, dz};
  }
};

}  // namespace detail_::mixing

/// The mixing of a gate whose items do not share probabilities: every item keeps the softmax of its own logits z, and
/// the logits order the experts.
///
///     q[n,:] = softmax(z[n,:]),   rank = z                                                              (1)
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538, eq. (3), (4). Logits keep the order of experts even if their float
/// probabilities underflow to 0.
/// @param z [N, E] in, q [N, E] out
/// @cost   N·E exponentials
struct Independent : detail_::mixing::EachItem<functor::Softmax, functor::SoftmaxBackward> {};

GATEFOLD_FUNCTORS((class T, class B), Sigmoids, SigmoidsBackward);

/// The mixing of a gate whose experts have independent weights: q is the sigmoid of each logit instead of a softmax, so
/// the values of an item do not sum to 1. The logits order the experts.
///
///     q[n,e] = σ(z[n,e]) = 1 / (1 + e^(−z[n,e])),   rank = z                                            (1)
///
/// Source: the router of Llama 4 (transformers' modeling_llama4.py), with the selection TopK{.renormalise = false}. The
/// logits keep the order of experts even if their sigmoids round to the same number. The selection SigmoidBias is the
/// sigmoid router of DeepSeek-V3. It has biases that balance the load.
/// @param z [N, E] in, q [N, E] out
/// @cost   N·E exponentials
struct IndependentSigmoid : detail_::mixing::EachItem<functor::Sigmoids, functor::SigmoidsBackward> {};

namespace functor {

/// Writes q[n,:] = σ(z[n,:]), the sigmoids of the logits of item n.
template <class T, class B>
struct Sigmoids {
  View<const T, 2, B> z;
  View<T, 2, B> q;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    row(lanes, n, z.data() + n * z.extent(1), q.data() + n * z.extent(1));
  }
  /// Writes to = σ(from) for one row of logits. `to` and `from` can be the same memory.
  template <class Lanes>
  GATEFOLD_HD void row(const Lanes& lanes, Index, const T* from, T* to) const {
    using functor::math::exp, functor::math::reciprocal;
    each_column<T>(lanes, z.extent(1),
                   [&](auto at, Index e) { at.store(to + e, reciprocal(T(1) + exp(-at.load(from + e)))); });
  }
};
/// Writes the gradient of the logits, dz[n,e] = q[n,e] (1 − q[n,e]) dq[n,e].
template <class T, class B>
struct SigmoidsBackward {
  View<const T, 2, B> q, dq;
  View<T, 2, B> dz;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = q.extent(1), first = n * columns;
    const T *of_row = q.data() + first, *d = dq.data() + first;
    T* to = dz.data() + first;
    each_column<T>(lanes, columns, [&](auto at, Index e) {
      const auto value = at.load(of_row + e);
      at.store(to + e, value * (T(1) - value) * at.load(d + e));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
