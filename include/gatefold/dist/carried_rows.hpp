#pragma once

#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Rows of T on their way between shards, as V: T itself, or Bfloat16.
namespace gatefold::fn {

/// to[i, :] = from[rows[i], :], rounded where V is smaller; without a list, from[i, :]
template <class T, class V, class B>
struct PackRows {
  View<const Index, 1, B> rows;
  View<const T, 2, B> from;
  View<V, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index row = rows.empty() ? i : rows(i);
    each_column<T>(lanes, to.extent(1), [&](const auto& at, Index j) { at.store(&to(i, j), at.load(&from(row, j))); });
  }
};
/// The way back: to[rows[i], :] = from[i, :]
template <class T, class V, class B>
struct UnpackRows {
  View<const Index, 1, B> rows;
  View<const V, 2, B> from;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index row = rows.empty() ? i : rows(i);
    each_column<T>(lanes, to.extent(1), [&](const auto& at, Index j) { at.store(&to(row, j), at.load(&from(i, j))); });
  }
};

}  // namespace gatefold::fn
