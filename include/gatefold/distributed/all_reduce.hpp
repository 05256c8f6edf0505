#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "gatefold/distributed/memory.hpp"

/// Sums gradients over the shards (the parts of a batch), for tensors of which every shard has a copy.
namespace gatefold::dist {

/// Replaces each value of a pack (a struct of named tensors) by its sum over the shards, on all shards. Leaves Sharded
/// packs unchanged, because each of their experts is on only one shard. In a Table (an embedding), sums only the rows
/// that at least one shard has touched.
/// @cost   one Shard::sum for all values of an element type (float or double), and two copies of these values. For each
///         Table also one or two exchanges of row counts and row numbers
/// @order  the order of Shard::sum: a binary tree over the shards
template <class ShardT, class C, class P>
void all_reduce(ShardT& shard, C& ctx, P& pack);

namespace reducing {

/// Makes all shards agree on the touched rows of a Table. A Table is a matrix whose gradient has few written (touched)
/// rows, for example an embedding. After the call, a row is touched on this shard if any shard touched it; rows that
/// this shard did not write are 0. Returns the touched rows in ascending order. If a shard has touched all rows, sets
/// `all` to true and returns an empty list.
template <class ShardT, class M, class T, class B>
std::vector<Index> touch_rows_of_all(ShardT& shard, const M& memory, Table<T, B>& table, bool& all) {
  const auto rows = table.rows();
  auto marks = memory.read(rows.marks, rows.all ? 0 : table.extent(0));
  std::vector<Index> mine;
  for (std::size_t v = 0; v < marks.size(); ++v)
    if (marks[v] != 0) mine.push_back(static_cast<Index>(v));
  const std::vector<Index> counts = shard.all_gather(rows.all ? Index(-1) : static_cast<Index>(mine.size()));
  all = std::find(counts.begin(), counts.end(), Index(-1)) != counts.end();
  if (all) {
    table.touch_all();
    return {};
  }
  std::vector<Index> touched(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), Index(0))));
  shard.template all_gather<Index>(mine.data(), counts, touched.data());
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const Index v : touched) marks[static_cast<std::size_t>(v)] = 1;
  memory.write(marks, rows.marks);
  return touched;
}

/// A visitor that lists the contiguous runs of values of type T that all_reduce must sum, in the order of the tensors
/// of the pack (a struct of named tensors). It skips packs that are distributed over the shards.
template <class T, class ShardT, class M>
struct Runs {
  ShardT& shard;
  const M& memory;
  std::vector<std::pair<T*, Index>> found{};

  template <int Rank, class B>
  void operator()(const Name&, Tensor<T, Rank, B>& t) {
    if (t.size() > 0) found.emplace_back(t.data(), t.size());
  }
  template <class B>
  void operator()(const Name&, Table<T, B>& t) {
    bool all = false;
    const std::vector<Index> touched = touch_rows_of_all(shard, memory, t, all);
    T* const data = t.rows().data;
    if (all) found.emplace_back(data, t.size());
    for (const Index v : touched) found.emplace_back(data + v * t.extent(1), t.extent(1));
  }
  void operator()(const Name&, auto&) {}  // not of type T
  void sharded(const Name&, auto&) {}
};

template <class T, class ShardT, class C, class P>
void sum_elements(ShardT& shard, C& ctx, P& pack) {
  const auto memory = memory_of(ctx);
  Runs<T, ShardT, decltype(memory_of(ctx))> runs{shard, memory};
  for_each_tensor(runs, pack);
  Index size = 0;
  for (const auto& [data, n] : runs.found) size += n;
  if (size == 0) return;
  auto mark = ctx.mark();
  T* const together = ctx.template scratch<T>(size).data();
  T* to = together;
  for (const auto& [data, n] : runs.found) {
    memory.copy(data, n, to);
    to += n;
  }
  shard.sum(ctx, together, size);
  const T* from = together;
  for (const auto& [data, n] : runs.found) {
    memory.copy(from, n, data);
    from += n;
  }
}

}  // namespace reducing

template <class ShardT, class C, class P>
void all_reduce(ShardT& shard, C& ctx, P& pack) {
  const auto here = ctx.here();
  if (shard.count() == 1) return;
  reducing::sum_elements<float>(shard, ctx, pack);
  reducing::sum_elements<double>(shard, ctx, pack);
}

}  // namespace gatefold::dist
