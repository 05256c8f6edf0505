#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// The parallel loops, sums and the counting sort of the CPU backend. The division of work between threads never
/// changes a result.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Calls f(i) for begin <= i < end. The attribute `flatten` inlines all functions that f calls. Otherwise a linker
/// would keep one copy of such a function for all object files, although files compiled for different instruction sets
/// round a sum of products differently.
template <class F>
[[gnu::flatten]] void each_index(Index begin, Index end, const F& f) {
  for (Index i = begin; i < end; ++i) f(i);
}

/// Calls f(i) for 0 <= i < n on several threads, in long runs that a compiler can vectorise. If f is a RegisterFunctor
/// (works on vector registers), calls f(at, i) once for each register of elements instead; i is its first element.
template <class Context, class F>
void for_each(Context& ctx, Index n, const F& f) {
  // Loops with fewer than `parallel_from` elements run on one thread. Otherwise each thread gets a multiple of `line`
  // elements, so that it works on whole cache lines.
  const Index parallel_from = ctx.eager() ? 2 : tuning.shared_elements, line = ctx.eager() ? 1 : 64;
  const int threads = n < parallel_from ? 1 : ctx.threads();
  const Index sample = ctx.eager() ? 0 : tuning.sampled_elements;
  const Ranges ranges{n, divide_up(divide_up(n, threads), line) * line, sample, line};
  parallel_ranges(ctx.executor(), threads, ranges, [&](Index begin, Index end) {
    // A local copy of f. Compilers can keep its members in registers, because stores in the loop cannot change it.
    const F g = f;
    if constexpr (RegisterFunctor<F>) {
      RowLanes{}.each<typename F::Element>(end - begin, [&](auto at, Index i) { g(at, begin + i); });
    } else {
      each_index(begin, end, g);
    }
  });
}

/// Calls f(lanes, row) for each row < n, on several threads. f loops over the columns of its row with the functions of
/// `lanes`. Two rows for each thread are enough to use all threads, because the work for a row can be large.
template <class Context, class F>
void for_rows(Context& ctx, Index n, const F& f) {
  const int threads = n < Index(2) * ctx.threads() && !ctx.eager() ? 1 : ctx.threads();
  const Index chunk = std::clamp<Index>(n / (threads * tuning.loop_tasks_each), 1, tuning.loop_rows);
  const Ranges ranges{n, chunk, ctx.eager() ? 0 : divide_up(n, tuning.rows_of_sample)};
  parallel_ranges(ctx.executor(), threads, ranges, [&](Index begin, Index end) {
    for (Index row = begin; row < end; ++row) f(RowLanes{}, row);
  });
}

/// Adds the sum of f(i) over 0 <= i < n to *out.
/// @order  each block of 4096 consecutive terms is summed in order; then the sums of the blocks are added in order
template <class T, class Context, class F>
void reduce(Context& ctx, Index n, const F& f, T* out) {
  constexpr Index block = 4096, few = 64;
  const Index blocks = divide_up(n, block);
  const auto mark = ctx.mark();
  T local[few];
  T* partial = blocks <= few ? local : ctx.template scratch<T>(blocks).data();
  const Ranges ranges{blocks, 1, ctx.eager() ? 0 : 1};
  parallel_ranges(ctx.executor(), blocks < 4 ? 1 : ctx.threads(), ranges, [&](Index first, Index last) {
    for (Index b = first; b < last; ++b) {
      T sum = 0;
      each_index(b * block, std::min(n, (b + 1) * block), [&](Index i) { sum += f(i); });
      partial[b] = sum;
    }
  });
  T total = 0;
  for (Index b = 0; b < blocks; ++b) total += partial[b];
  *out += total;
}

/// Sorts the positions 0 to n - 1 by their keys, for example by expert, with a stable, parallel counting sort. First,
/// one task for each chunk of positions counts the keys of the chunk. The counts are then turned into places in
/// `order`. Finally, one task for each chunk writes its positions to these places.
/// @param offsets  [groups + 1] out  the place in `order` at which the positions of each key begin
/// @param order    out  the positions with keys that are not negative, sorted by key
/// @throws ArgumentError unless every key is less than groups
template <class Context>
void group_by(Context& ctx, Index n, const Index* keys, Index groups, Index* offsets, Index* order) {
  const Index parallel_from = ctx.eager() ? 2 : tuning.shared_keys;
  // Each chunk of keys needs `groups` counters. With at least `groups` keys in a chunk, its counters cost less than its
  // keys.
  const Index worth = ctx.eager() ? n : n / std::max<Index>(groups, 1);
  const Index chunks = n < parallel_from ? 1 : std::clamp<Index>(worth, 1, ctx.threads());
  const auto mark = ctx.mark();
  Index* places = ctx.template scratch<Index>(chunks, groups).data();
  Index* largest = ctx.template scratch<Index>(chunks).data();
  const auto begin = [&](Index c) { return c * n / chunks; };
  parallel_for(ctx.executor(), ctx.threads(), chunks, [&](Index c, int) {
    Index* count = places + c * groups;
    std::fill(count, count + groups, 0);
    Index top = -1;
    for (Index i = begin(c), end = begin(c + 1); i < end; ++i) {
      top = std::max(top, keys[i]);
      if (0 <= keys[i] && keys[i] < groups) ++count[keys[i]];
    }
    largest[c] = top;
  });
  const Index top = *std::max_element(largest, largest + chunks);
  expect(top < groups, "group_by", "key", Joined{"less than ", groups, " (the number of experts or items)"}, top);
  Index next = 0;
  for (Index g = 0; g < groups; ++g) {
    offsets[g] = next;
    for (Index c = 0; c < chunks; ++c) next += std::exchange(places[c * groups + g], next);
  }
  offsets[groups] = next;
  parallel_for(ctx.executor(), ctx.threads(), chunks, [&](Index c, int) {
    Index* to = places + c * groups;
    for (Index i = begin(c), end = begin(c + 1); i < end; ++i)
      if (keys[i] >= 0) order[to[keys[i]]++] = i;
  });
}

/// Sums rows of values for each expert e, for example for the gradient of a bias: db[e] = Σ_s weight[s] dc[rows[s]]
/// over the slots s (rows of work) of the expert. Adds the sum to db[e] instead if `accumulate` is true. Reads several
/// rows together and in long runs, because memory is read faster in this way.
/// @param dc      [·, columns] in       rows of values
/// @param rows    [slots] in            the row of dc that each slot reads; if null, slot s reads row s
/// @param weight  [slots] in            a factor for each slot; if null, all factors are 1
/// @param db      [experts, columns] in, out  one sum for each expert and column
/// @order  one sum for each block of Tile::depth slots of an expert; these sums are added to db in order
template <class T, class Context>
void grouped_sum(Context& ctx, Index experts, const Index* offsets, const T* dc, const Index* rows, const T* weight,
                 Index columns, bool accumulate, T* db) {
  using V = Register<T>;
  constexpr Index width = tuning.sum_columns, block = Tile<T>::depth, together = tuning.sum_rows;
  const Index strips = divide_up(columns, width);
  const bool few = experts == 0 || (offsets[experts] - offsets[0]) * columns < tuning.shared_sum;
  parallel_for(ctx.executor(), few ? 1 : ctx.threads(), experts * strips, [&](Index task, int) noexcept {
    const Index e = task / strips, column = task % strips * width, here = std::min(width, columns - column);
    alignas(64) T sum[std::size_t{width}];
    T* total = db + e * columns + column;
    if (!accumulate) std::fill(total, total + here, T(0));
    for (Index s = offsets[e]; s < offsets[e + 1]; s += block) {
      const Index end = std::min(s + block, offsets[e + 1]);
      std::fill(sum, sum + here, T(0));
      for (Index r = s; r < end; r += together) {
        const Index count = std::min(together, end - r);
        const T* from[std::size_t{together}];
        T w[std::size_t{together}];
        for (Index k = 0; k < count; ++k) {
          from[k] = dc + (rows ? rows[r + k] : r + k) * columns + column;
          w[k] = weight ? weight[r + k] : T(1);
        }
        RowLanes{}.each<T>(here, [&](auto at, Index x) {
          V v = at.load(sum + x);
          for (Index k = 0; k < count; ++k) v += w[k] * at.load(from[k] + x);
          at.store(sum + x, v);
        });
      }
      RowLanes{}.each<T>(here, [&](auto at, Index x) { at.store(total + x, at.load(total + x) + at.load(sum + x)); });
    }
  });
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
