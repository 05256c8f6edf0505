#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/metric/metric.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), Surprise);

namespace metric {

/// Returns the mean negative log-likelihood of a classifier or language model, in nats.
///
///     nll = (1/N) Σ_n (log Σ_c exp y[n,c] − y[n, labels[n]])                                            (1)
///
/// @param y      [N, C] in  logits
/// @param labels [N]    in  in [0, C)
/// @param valid  [N]    in  1 = item, 0 = padding; empty: all are items
/// @param ignore  label of the items that do not count
/// @throws ArgumentError unless the labels fit (on a device, only debug builds check their range)
/// @cost  N·C exponentials, in double
template <class T, class B>
double negative_log_likelihood(typename B::Context& ctx, View<T, 2, B> y, In<Index, 1, B> labels,
                               In<std::remove_const_t<T>, 1, B> valid = {}, Index ignore = ignore_none) {
  using U = std::remove_const_t<T>;
  expect_labels<U, B>("perplexity", y.extent(0), y.extent(1), labels, valid, ignore);
  return mean_of<B>(ctx, y.extent(0), functor::Surprise<U, B>{y, labels},
                    functor::IsLabelled<U, B>{{valid}, labels, ignore});
}

/// Returns the perplexity of a classifier or language model, which is the exponential of its mean negative
/// log-likelihood (nll).
///
///     ppl = exp(nll)                                                                                    (2)
///
/// Source: papers 001 and 002, WikiText-103. For several batches, average the nll of the batches, weighted by their
/// numbers of items, and then take the exponential.
template <class T, class B>
double perplexity(typename B::Context& ctx, View<T, 2, B> y, In<Index, 1, B> labels,
                  In<std::remove_const_t<T>, 1, B> valid = {}, Index ignore = ignore_none) {
  return std::exp(negative_log_likelihood(ctx, y, labels, valid, ignore));
}

/// Returns the mean negative log-likelihood (nll) in bits per item. If items are characters, these are bits per
/// character.
///
///     bits = nll / ln 2                                                                                 (3)
template <class T, class B>
double bits(typename B::Context& ctx, View<T, 2, B> y, In<Index, 1, B> labels,
            In<std::remove_const_t<T>, 1, B> valid = {}, Index ignore = ignore_none) {
  return negative_log_likelihood(ctx, y, labels, valid, ignore) / std::log(2.0);
}

}  // namespace metric

namespace functor {

/// Returns the negative log-likelihood log Σ_c exp(y[n,c] − top) − (y[n,l] − top) of item n with label l, in double.
/// The subtraction of the largest logit (top) prevents overflow.
template <class T, class B>
struct Surprise {
  View<const T, 2, B> y;
  View<const Index, 1, B> labels;
  GATEFOLD_HD double operator()(Index n) const {
    GATEFOLD_ASSERT(0 <= labels(n) && labels(n) < y.extent(1), "perplexity: label out of range");
    double top = static_cast<double>(y(n, 0)), total = 0;
    for (Index c = 1; c < y.extent(1); ++c)
      top = static_cast<double>(y(n, c)) > top ? static_cast<double>(y(n, c)) : top;
    for (Index c = 0; c < y.extent(1); ++c) total += std::exp(static_cast<double>(y(n, c)) - top);
    return std::log(total) - (static_cast<double>(y(n, labels(n))) - top);
  }
};

}  // namespace functor

}  // namespace gatefold
