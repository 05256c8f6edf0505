#pragma once

#include "gatefold/backend/lanes.hpp"

namespace gatefold::functor {

/// Copies rows of a matrix: to[to_rows[i], :] = from[from_rows[i], :] for each i. If `from_rows` is empty, row i of
/// `from` is read. If `to_rows` is empty, row i of `to` is written. Values are rounded if Y is smaller than T.
/// @tparam T     the type of a value between load and store
/// @tparam X, Y  the types of the values of `from` and of `to`
template <class T, class X, class Y, class B>
struct CarryRows {
  View<const Index, 1, B> from_rows;
  View<const X, 2, B> from;
  View<const Index, 1, B> to_rows;
  View<Y, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index source = from_rows.empty() ? i : from_rows(i), target = to_rows.empty() ? i : to_rows(i);
    each_column<T>(lanes, to.extent(1),
                   [&](const auto& at, Index j) { at.store(&to(target, j), at.load(&from(source, j))); });
  }
};

}  // namespace gatefold::functor
