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

/// The family of metrics: what a step or an evaluation left behind, in numbers. A metric is a function of views or of a
/// plan that returns plain host values:
///
///     double entropy(ctx, q, valid = {});
///
/// Sums run on the backend, in double; what is copied to the host is small. Items with valid[n] = 0 are padding and
/// count nowhere; an empty `valid` means that all are items. Nor do items whose label is the one to `ignore`, as in a
/// loss. A mean over no items is 0.
namespace gatefold {

namespace functor {

/// Whether item n counts.
template <class T, class B>
struct IsItem {
  View<const T, 1, B> valid;
  GATEFOLD_HD bool operator()(Index n) const { return valid.empty() || valid(n) != 0; }
};
/// Whether it does, and its label too.
template <class T, class B>
struct IsLabelled {
  IsItem<T, B> is_item;
  View<const Index, 1, B> labels;
  Index ignore;
  GATEFOLD_HD bool operator()(Index n) const { return is_item(n) && labels(n) != ignore; }
};
/// f(n) of items, 0 of padding, which may hold anything
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

namespace metric {

/// A view's elements on the host, row-major.
template <class T, int R, class B>
std::vector<std::remove_const_t<T>> to_vector(typename B::Context& ctx, View<T, R, B> x) {
  std::vector<std::remove_const_t<T>> values(static_cast<std::size_t>(x.size()));
  B::to_host(ctx, x.size(), static_cast<const T*>(x.data()), values.data());
  return values;
}

/// f(0), …, f(n − 1)
template <class B, class F>
std::vector<double> each(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto values = ctx.template scratch<double>(n);
  B::for_each(ctx, n, functor::Tabulate<F, double, B>{f, values});
  return to_vector(ctx, values);
}

/// Σ_i f(i)
/// @order summed in a fixed order: the same bits for any number of threads
template <class B, class F>
double sum(typename B::Context& ctx, Index n, const F& f) {
  auto mark = ctx.mark();
  auto value = ctx.template scratch<double>(1);
  fill(ctx, value, 0);
  B::template reduce<double>(ctx, n, f, value.data());
  return to_vector(ctx, value)[0];
}

/// (1 / items) Σ_n f(n) over the items that count; 0 if none does.
template <class B, class F, class IsItemT>
double mean_of(typename B::Context& ctx, Index n, const F& f, const IsItemT& is_item) {
  const double items = sum<B>(ctx, n, functor::OfItems<functor::One, IsItemT>{{}, is_item});
  return items > 0 ? sum<B>(ctx, n, functor::OfItems<F, IsItemT>{f, is_item}) / items : 0;
}
/// @throws ArgumentError unless `valid` is empty or has one entry per item
template <class T, class B, class F>
double mean(typename B::Context& ctx, Index n, const F& f, View<const T, 1, B> valid) {
  if (!valid.empty()) expect_shape("metric", "valid", valid, {n});
  return mean_of<B>(ctx, n, f, functor::IsItem<T, B>{valid});
}

/// count[g] = how many of key(0), …, key(n − 1) are g; negative keys are left out.
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

/// Require one label per item, and those of the items that count, but for `ignore`, in [0, classes).
/// @throws ArgumentError (about the range of labels: on host backends; on a device debug builds assert)
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
}  // namespace gatefold
