#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/order.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// Metrics are numbers that describe the result of a step or an evaluation. A metric is a function of views or of a
/// plan. It returns plain values on the host:
///
///     double entropy(ctx, q, valid = {});
///
/// Sums run on the backend, in double. Only small arrays are copied to the host. Items with valid[n] = 0 are padding
/// and do not count; if `valid` is empty, no item is padding. Items with the label `ignore` do not count either, as in
/// a loss. If no item counts, a mean is 0.
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), IsItem, IsLabelled);
GATEFOLD_FUNCTORS((class F, class IsItemT), OfItems);
GATEFOLD_FUNCTORS((class F, class T, class B), Tabulate);

namespace metric {

/// Returns the elements of a view on the host, row-major.
template <class T, int R, class B>
std::vector<std::remove_const_t<T>> to_vector(typename B::Context& ctx, View<T, R, B> x) {
  std::vector<std::remove_const_t<T>> values(static_cast<std::size_t>(x.size()));
  B::to_host(ctx, x.size(), static_cast<const T*>(x.data()), values.data());
  return values;
}

/// Returns the values f(0), …, f(n − 1).
template <class B, class F>
std::vector<double> each(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto values = ctx.template scratch<double>(n);
  B::for_each(ctx, n, functor::Tabulate<F, double, B>{f, values});
  return to_vector(ctx, values);
}

/// Returns the sum of f(i) for all i < n.
/// @order summed in a fixed order, with the same bits for any number of threads
template <class B, class F>
double sum(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto value = ctx.template scratch<double>(1);
  fill(ctx, value, 0);
  B::template reduce<double>(ctx, n, f, value.data());
  return to_vector(ctx, value)[0];
}

/// Returns the mean of f(i) over the items i < n with is_item(i), or 0 if there are no such items.
template <class B, class F, class IsItemT>
double mean_of(typename B::Context& ctx, Index n, const F& f, const IsItemT& is_item) {
  const double items = sum<B>(ctx, n, functor::OfItems<IsItemT, IsItemT>{is_item, is_item});
  return items > 0 ? sum<B>(ctx, n, functor::OfItems<F, IsItemT>{f, is_item}) / items : 0;
}
/// Returns the mean of f(i) over the items i < n that are not padding, or 0 if all are padding.
/// @throws ArgumentError unless `valid` is empty or has one entry per item
template <class T, class B, class F>
double mean(typename B::Context& ctx, Index n, const F& f, View<const T, 1, B> valid) {
  if (!valid.empty()) expect_shape("metric", "valid", valid, {n});
  return mean_of<B>(ctx, n, f, functor::IsItem<T, B>{valid});
}

/// Returns a histogram: for each g < groups, the number of keys key(0), …, key(n − 1) that equal g. Negative keys do
/// not count.
/// @cost O(n + groups) time and scratch
template <class B, class F>
std::vector<Index> histogram(typename B::Context& ctx, Index n, const F& key, Index groups) {
  auto mark = ctx.mark();
  auto keys = ctx.template scratch<Index>(n), order = ctx.template scratch<Index>(n);
  auto offsets = ctx.template scratch<Index>(groups + 1);
  B::for_each(ctx, n, functor::Tabulate<F, Index, B>{key, keys});
  B::group_by(ctx, keys, offsets, order);
  std::vector<Index> counts = to_vector(ctx, offsets);
  for (std::size_t g = 0; g + 1 < counts.size(); ++g) counts[g] = counts[g + 1] - counts[g];
  counts.pop_back();
  return counts;
}

/// Checks that there is one label per item, and that labels of items that count are `ignore` or in [0, classes).
/// @throws ArgumentError if a check fails. On a device, only assertions in debug builds check the range of labels
template <class T, class B>
void expect_labels(const char* where, Index items, Index classes, View<const Index, 1, B> labels,
                   View<const T, 1, B> valid, Index ignore = ignore_none) {
  expect_shape(where, "labels", labels, {items});
  if (!valid.empty()) expect_shape(where, "valid", valid, {items});
  if constexpr (B::is_host)
    for (Index n = 0; n < items; ++n)
      expect(!functor::IsLabelled<T, B>{{valid}, labels, ignore}(n) || (0 <= labels(n) && labels(n) < classes), where,
             "labels", Joined{"labels from 0 to ", classes - 1}, labels(n));
}

}  // namespace metric

namespace functor {

/// Returns whether item n counts in a metric, that is, whether it is not padding.
template <class T, class B>
struct IsItem {
  View<const T, 1, B> valid;
  GATEFOLD_HD bool operator()(Index n) const { return valid.empty() || valid(n) != 0; }
};
/// Returns whether item n counts in a metric of labels: it is not padding, and its label is not `ignore`.
template <class T, class B>
struct IsLabelled {
  IsItem<T, B> is_item;
  View<const Index, 1, B> labels;
  Index ignore;
  GATEFOLD_HD bool operator()(Index n) const { return is_item(n) && labels(n) != ignore; }
};
/// Returns f(n) if item n counts in a metric (is_item(n)). Otherwise returns 0 without a call of f.
template <class F, class IsItemT>
struct OfItems {
  F f;
  IsItemT is_item;
  GATEFOLD_HD double operator()(Index n) const { return is_item(n) ? static_cast<double>(f(n)) : 0; }
};
/// Writes out[i] = f(i).
template <class F, class T, class B>
struct Tabulate {
  F f;
  View<T, 1, B> out;
  GATEFOLD_HD void operator()(Index i) const { out(i) = f(i); }
};

}  // namespace functor

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
/// @throws ArgumentError unless 1 <= k <= C and there is one label per item, in [0, C) if the item counts (on a device,
///         only debug builds check the range)
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
/// Otherwise returns 0. A class ranks before the label if its logit is NaN or larger than the logit of the label. It
/// also ranks before the label if both logits are equal and the class has the lower index.
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
/// @throws ArgumentError unless there is one label per item, in [0, C) if the item counts (on a device, only debug
///         builds check the range)
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
