#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// Metrics are numbers that describe the result of a step or an evaluation. A metric is a function of views or of a
/// plan. It returns plain values on the host:
///
///     double entropy(ctx, q, valid = {});
///
/// Sums run on the backend, in double. Only small arrays are copied to the host. Items with valid[n] = 0 are padding
/// and do not count; with an empty `valid`, all are items. Items with the label `ignore` do not count either, as in a
/// loss. If no item counts, a mean is 0.
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
/// @cost O(n + groups), n keys of scratch
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

}  // namespace gatefold
