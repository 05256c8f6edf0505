#pragma once

#include <type_traits>

#include "gatefold/backend/order.hpp"
#include "gatefold/metric/metric.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), IsAmongBest);

namespace metric {

/// Returns the top-k accuracy: the share of items whose label has one of the k largest logits.
///
///     (1/N) Σ_n [ |{c : y[n,c] > y[n,l], or = and c < l}| < k ],   l = labels[n]                        (1)
///
/// If the logit of the label is NaN, the item counts as wrong. NaN logits of other classes rank before every number.
/// @param y      [N, C] in  logits
/// @param labels [N]    in  in [0, C)
/// @param valid  [N]    in  1 = item, 0 = padding; empty: all are items
/// @param ignore  label of the items that do not count
/// @throws ArgumentError unless 1 <= k <= C and the labels fit (on a device, only debug builds check the range of
///         labels)
/// @cost  N·C comparisons
/// @order ties go to the lower index
template <class T, class B>
double accuracy(typename B::Context& ctx, View<T, 2, B> y, In<Index, 1, B> labels, Index k = 1,
                In<std::remove_const_t<T>, 1, B> valid = {}, Index ignore = ignore_none) {
  using U = std::remove_const_t<T>;
  expect(k >= 1 && k <= y.extent(1), "accuracy", "k", Joined{"1 <= k <= classes = ", y.extent(1)}, k);
  expect_labels<U, B>("accuracy", y.extent(0), y.extent(1), labels, valid, ignore);
  return mean_of<B>(ctx, y.extent(0), functor::IsAmongBest<U, B>{y, labels, k},
                    functor::IsLabelled<U, B>{{valid}, labels, ignore});
}

}  // namespace metric

namespace functor {

/// Returns 1 if the label of item n is one of its k best classes, that is, if fewer than k classes rank before it.
/// Otherwise returns 0. A class ranks before the label if its logit is larger than that of the label or NaN. It also
/// ranks before the label if its logit is equal and its index lower.
template <class T, class B>
struct IsAmongBest {
  View<const T, 2, B> y;
  View<const Index, 1, B> labels;
  Index k;
  GATEFOLD_HD double operator()(Index n) const {
    const Index label = labels(n);
    GATEFOLD_ASSERT(0 <= label && label < y.extent(1), "accuracy: label out of range");
    const T own = y(n, label);
    if (is_nan(own)) return 0;
    Index before = 0;
    for (Index c = 0; c < y.extent(1); ++c) {
      const T other = y(n, c);
      before += is_nan(other) || other > own || (other == own && c < label);
    }
    return before < k ? 1 : 0;
  }
};

}  // namespace functor

}  // namespace gatefold
