#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/distributed/group.hpp"

/// Functions that copy some of the rows of a tensor. A row is the part with one index of the first dimension. Rows are
/// for example experts, or the rows whose optimizer step one shard computes.
namespace gatefold::dist::rows {

/// Returns the number of values in one row of a tensor.
template <class P>
Index width(const P& t) {
  Index n = 1;
  for (int d = 1; d < P::rank; ++d) n *= t.extent(d);
  return n;
}
/// Resizes the tensor `part` to `count` rows. Its other extents become the extents of `all`.
template <class P, class Q>
void resize(P& part, const Q& all, Index count) {
  const auto extents = [&]<std::size_t... D>(std::index_sequence<D...>) { part.resize(count, all.extent(D + 1)...); };
  extents(std::make_index_sequence<static_cast<std::size_t>(P::rank - 1)>{});
}
/// Copies the rows `range` of `all`, which have `width` values each, to `to`.
template <class M, class T>
void copy(const M& memory, const T* all, const Range& range, Index width, T* to) {
  memory.copy(all + range.first * width, range.count * width, to);
}
/// Copies the rows of `all` with the given numbers to `to`, one after the other.
template <class M, class T>
void pick(const M& memory, const T* all, const std::vector<Index>& numbers, Index width, T* to) {
  for (const Index row : numbers) {
    copy(memory, all, {row, 1}, width, to);
    to += width;
  }
}
/// The inverse of pick: copies consecutive rows of `from` to the rows of `all` with the given numbers. Returns the
/// first row of `from` that it has not read.
template <class M, class T>
const T* place(const M& memory, const T* from, const std::vector<Index>& numbers, Index width, T* all) {
  for (const Index row : numbers) {
    copy(memory, from, {0, 1}, width, all + row * width);
    from += width;
  }
  return from;
}

}  // namespace gatefold::dist::rows
