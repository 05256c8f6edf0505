#pragma once

#include <algorithm>

#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Loops, sums and the counting sort of the CPU backend. Where work is cut never reaches a result.
namespace gatefold::cpu {

/// f(i) for i < n, in long runs that a compiler can vectorise.
/// @param eager  share out however little there is, see Cpu::Context
template <class F>
void for_each(int threads, Index n, const F& f, bool eager = false) {
  const Index parallel_from = eager ? 2 : 1 << 14, line = eager ? 1 : 64;  // elements; whole cache lines for each thread
  const Index chunks = n < parallel_from ? 1 : threads;
  const Index chunk = ((n + chunks - 1) / chunks + line - 1) / line * line;
  parallel_for(threads, chunks, [&](Index c, int) {
    const F g = f;  // a copy of its own, which no store in the loop can alias
    const Index end = std::min(n, (c + 1) * chunk);
    for (Index i = c * chunk; i < end; ++i) g(i);
  });
}

/// f(lanes, row) for row < n. A row may be heavy, so that two rows for each thread are worth sharing.
template <class F>
void for_rows(int threads, Index n, const F& f, bool eager = false) {
  const Index chunk = std::clamp<Index>(n / (threads * 8), 1, 64);
  parallel_for(n < 2 * threads && !eager ? 1 : threads, (n + chunk - 1) / chunk, [&](Index c, int) {
    const Index end = std::min(n, (c + 1) * chunk);
    for (Index row = c * chunk; row < end; ++row) f(OneLane{}, row);
  });
}

/// *out += Σ_i f(i).
/// @order  in order within blocks of 4096, then the blocks in order
template <class T, class Context, class F>
void reduce(Context& ctx, Index n, const F& f, T* out) {
  constexpr Index block = 4096, few = 64;
  const Index blocks = (n + block - 1) / block;
  const auto mark = ctx.mark();
  T local[few];
  T* partial = blocks <= few ? local : ctx.template scratch<T>(blocks).data();
  parallel_for(blocks < 4 ? 1 : ctx.threads(), blocks, [&](Index b, int) {
    T sum = 0;
    const Index end = std::min(n, (b + 1) * block);
    for (Index i = b * block; i < end; ++i) sum += f(i);
    partial[b] = sum;
  });
  T total = 0;
  for (Index b = 0; b < blocks; ++b) total += partial[b];
  *out += total;
}

/// Stable counting sort: every chunk of keys counts, one pass turns counts into places, every chunk writes to its
/// places.
/// @param offsets  [groups + 1] out
/// @param order    out  positions of the keys that are not negative
/// @throws ArgumentError unless every key is less than groups
template <class Context>
void group_by(Context& ctx, Index n, const Index* keys, Index groups, Index* offsets, Index* order) {
  const Index parallel_from = ctx.eager() ? 2 : 1 << 15;
  Index largest = -1;
  for (Index i = 0; i < n; ++i) largest = std::max(largest, keys[i]);
  expect(largest < groups, "group_by", "key", Joined{"less than ", groups, " (an expert or item that exists)"}, largest);
  const Index chunks = n < parallel_from || (n < 8 * groups && !ctx.eager()) ? 1 : ctx.threads();
  const auto mark = ctx.mark();
  Index* places = ctx.template scratch<Index>(chunks, groups).data();
  const auto each_key = [&](Index c, const auto& f) {
    for (Index i = c * n / chunks, end = (c + 1) * n / chunks; i < end; ++i)
      if (keys[i] >= 0) f(i, places[c * groups + keys[i]]);
  };
  parallel_for(ctx.threads(), chunks, [&](Index c, int) {
    std::fill(places + c * groups, places + (c + 1) * groups, 0);
    each_key(c, [](Index, Index& count) { ++count; });
  });
  Index place = 0;
  for (Index g = 0; g < groups; ++g) {
    offsets[g] = place;
    for (Index c = 0; c < chunks; ++c) {
      const Index count = places[c * groups + g];
      places[c * groups + g] = place;
      place += count;
    }
  }
  offsets[groups] = place;
  parallel_for(ctx.threads(), chunks, [&](Index c, int) { each_key(c, [&](Index i, Index& to) { order[to++] = i; }); });
}

/// db[e] += Σ_s dc[s] over the slots of expert e.
/// @param dc  [slots, columns] in
/// @param db  [experts, columns] in, out
/// @order  a sum of its own over each block of Tile::depth slots of an expert, added to db in order
template <class T>
void grouped_sum(int threads, Index experts, const Index* offsets, const T* dc, Index columns, T* db) {
  using V = Register<T>;
  constexpr Index registers = 4, width = registers * V::size, block = Tile<T>::depth;
  const Index strips = (columns + width - 1) / width;
  if (experts == 0 || (offsets[experts] - offsets[0]) * columns < Index(1) << 16) threads = 1;
  parallel_for(threads, experts * strips, [&](Index task, int) noexcept {
    const Index e = task / strips, column = task % strips * width;
    int count[registers];
    for (Index j = 0; j < registers; ++j)
      count[j] = static_cast<int>(std::clamp<Index>(columns - column - j * V::size, 0, V::size));
    const auto each = [&](auto&& f) {
      for (Index j = 0; j < registers && count[j] > 0; ++j) f(j, count[j], column + j * V::size);
    };
    V total[registers];
    each([&](Index j, int n, Index x) { total[j] = V::load(db + e * columns + x, n); });
    for (Index s = offsets[e]; s < offsets[e + 1]; s += block) {
      V sum[registers];
      for (V& v : sum) v = V(T(0));
      for (Index r = s; r < std::min(s + block, offsets[e + 1]); ++r)
        each([&](Index j, int n, Index x) { sum[j] += V::load(dc + r * columns + x, n); });
      each([&](Index j, int, Index) { total[j] += sum[j]; });
    }
    each([&](Index j, int n, Index x) { total[j].store(db + e * columns + x, n); });
  });
}

}  // namespace gatefold::cpu
