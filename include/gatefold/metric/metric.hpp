#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

/// Metrics: numbers that describe the result of a step or an evaluation. A metric is a function of views or of a plan
/// that returns plain values on the host:
///
///     double entropy(ctx, q, valid = {});
///
/// Sums run on the backend, in double. Only small arrays are copied to the host. Items with valid[n] = 0 are padding
/// and do not count; with an empty `valid`, all are items. Items whose label is `ignore` do not count either, as in a
/// loss. A mean over no items is 0.
namespace gatefold {

namespace functor {

template <class T, class B>
struct IsItem;
template <class T, class B>
struct IsLabelled;
template <class F, class IsItemT>
struct OfItems;
struct One;
template <class F, class T, class B>
struct Tabulate;

}  // namespace functor

namespace metric {

/// Returns the elements of a view on the host, row-major.
template <class T, int R, class B>
std::vector<std::remove_const_t<T>> to_vector(typename B::Context& ctx, View<T, R, B> x) {
  std::vector<std::remove_const_t<T>> values(static_cast<std::size_t>(x.size()));
  B::to_host(ctx, x.size(), static_cast<const T*>(x.data()), values.data());
  return values;
}

/// Returns f(0), …, f(n − 1).
template <class B, class F>
std::vector<double> each(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto values = ctx.template scratch<double>(n);
  B::for_each(ctx, n, functor::Tabulate<F, double, B>{f, values});
  return to_vector(ctx, values);
}

/// Returns Σ_i f(i), i < n.
/// @order summed in a fixed order: the same bits for any number of threads
template <class B, class F>
double sum(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto value = ctx.template scratch<double>(1);
  fill(ctx, value, 0);
  B::template reduce<double>(ctx, n, f, value.data());
  return to_vector(ctx, value)[0];
}

/// Returns (1 / items) Σ_n f(n) over the items that count, or 0 if there are no such items.
template <class B, class F, class IsItemT>
double mean_of(typename B::Context& ctx, Index n, const F& f, const IsItemT& is_item) {
  const double items = sum<B>(ctx, n, functor::OfItems<functor::One, IsItemT>{{}, is_item});
  return items > 0 ? sum<B>(ctx, n, functor::OfItems<F, IsItemT>{f, is_item}) / items : 0;
}
/// Returns the mean of f over the items, or 0 if there are no items.
/// @throws ArgumentError unless `valid` is empty or has one entry per item
template <class T, class B, class F>
double mean(typename B::Context& ctx, Index n, const F& f, View<const T, 1, B> valid) {
  if (!valid.empty()) expect_shape("metric", "valid", valid, {n});
  return mean_of<B>(ctx, n, f, functor::IsItem<T, B>{valid});
}

/// Returns count[g], the number of keys key(0), …, key(n − 1) that are g. Negative keys do not count.
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

/// Requires one label per item. The labels of items that count must be `ignore` or in [0, classes).
/// @throws ArgumentError; the range of labels is checked only on host backends, and by assertions in debug builds on a
///         device
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

/// Returns whether item n counts.
template <class T, class B>
struct IsItem {
  View<const T, 1, B> valid;
  GATEFOLD_HD bool operator()(Index n) const { return valid.empty() || valid(n) != 0; }
};
/// Returns whether item n and its label count.
template <class T, class B>
struct IsLabelled {
  IsItem<T, B> is_item;
  View<const Index, 1, B> labels;
  Index ignore;
  GATEFOLD_HD bool operator()(Index n) const { return is_item(n) && labels(n) != ignore; }
};
/// f(n) for items, 0 for padding. The values of padding are never read.
template <class F, class IsItemT>
struct OfItems {
  F f;
  IsItemT is_item;
  GATEFOLD_HD double operator()(Index n) const { return is_item(n) ? static_cast<double>(f(n)) : 0; }
};
struct One {
  GATEFOLD_HD double operator()(Index) const { return 1; }
};
/// out[i] = f(i)
template <class F, class T, class B>
struct Tabulate {
  F f;
  View<T, 1, B> out;
  GATEFOLD_HD void operator()(Index i) const { out(i) = f(i); }
};

}  // namespace functor

}  // namespace gatefold
