#pragma once

#include "gatefold/backend/elementwise.hpp"
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

}  // namespace gatefold
