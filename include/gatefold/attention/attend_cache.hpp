#pragma once

#include <cmath>

#include "gatefold/attention/attend.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/backend/math.hpp"

/// Computes causal multi-head attention with keys and values in a KV cache. Keys and values of earlier items are read
/// directly from the cache, without a copy.
///
///     A_h[i,j] = softmax_j(scale · ⟨q_h,i, k_g,j⟩) over the keys in the window of i,   g = ⌊h · kv_heads / heads⌋  (1)
///     context[i] = concat_h Σ_j A_h[i,j] v_g,j                                                                    (2)
///
/// In the cache, each key and value head of each sequence has a separate matrix. The key matrices of all sequences and
/// heads come first, then the value matrices. If there are few queries, one product computes the scores of all query
/// heads that share a key head. The rows of this product are the queries of these heads.
/// @order  as in attention/attend_window.hpp. The results have the same bits as the results of attend_window.hpp,
///         because each sum goes over the keys in ascending order, from the same first key
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), StoreKeyValue);

namespace detail_::attending {

/// The shape of an attention to the keys in a KV cache.
struct CachedHeads {
  Index heads, kv_heads;
  Index capacity;  // rows of each matrix of the cache; each item has one row, and some rows can be unused
  Window window;   // the window of each item. The first rows of a matrix can be in no window

  GATEFOLD_HD Index group() const { return heads / kv_heads; }
  /// Returns the number of query rows (query heads times items) that share the keys of a matrix.
  GATEFOLD_HD Index rows() const { return group() * window.length; }
};

/// The mask of a block for functor::SoftmaxBlock: which keys of the block each row attends to. Keys that are padding
/// are hidden, and padding attends to no keys.
template <class T, class B>
struct CacheMask {
  CachedHeads of;
  View<const T, 1, B> valid;  // [S · capacity] 1 for items, 0 for padding

  GATEFOLD_HD static Index item(const Block& block, Index row) { return block.row + row; }
  GATEFOLD_HD Index first(const Block& block, Index row) const { return seen(block, row).first; }
  GATEFOLD_HD Index count(const Block& block, Index row) const {
    const Index sequence = item(block, row) / (of.rows() * of.kv_heads), t = item(block, row) % of.window.length;
    return valid(sequence * of.capacity + of.window.past + t) == 0 ? 0 : seen(block, row).count;
  }
  template <class A, class V>
  GATEFOLD_HD V seen(const A& at, Index item, Index key, V score) const {
    using functor::math::where_positive;
    const Index matrix = item / of.rows(), sequence = matrix / of.kv_heads;  // the same for all keys of a row
    return where_positive(at.load(valid.data() + (sequence - matrix) * of.capacity + key), score, V(-T(INFINITY)));
  }

 private:
  GATEFOLD_HD Window::Seen seen(const Block& block, Index row) const {
    return of.window.columns(item(block, row) % of.window.length, block.key % of.capacity, block.keys);
  }
};

/// Divides the query rows of the matrices first … first + count − 1 of the cache into blocks, and calls f(block) for
/// each. A matrix has the keys of one head of one sequence. A block has all keys in the windows of its query rows. If a
/// matrix has few query rows and few keys, a block can have the query rows of several matrices. It then has all
/// `capacity` rows of these matrices as keys.
void for_each_cache_block(const CachedHeads& of, Index first, Index count, const auto& f) {
  constexpr BlockSize size;
  constexpr Index area = size.rows * size.keys;
  const Window& window = of.window;
  const Index keys = window.keys(), rows = of.rows();
  const auto begin = [&](Index t) { return window.first(t) > 0 ? window.first(t) : 0; };
  // The first key of the last item's chunk or, without chunks, of the first item's window. One block can have the rows
  // of all items if this is equal to begin(0). With chunks, this means that all items are in the same chunk. Without
  // chunks, it is always true.
  const Index last_begin = begin(window.chunked ? window.length - 1 : 0);
  const Index together = area / (rows * of.capacity);
  if (count > 1 && together > 1 && of.capacity <= 2 * keys && last_begin == 0) {
    for (Index m = first; m < first + count; m += together)
      f(Block{m * rows, rows, m * of.capacity, of.capacity,
              m + together < first + count ? together : first + count - m});
    return;
  }
  const Index fit = area / ((window.width < keys ? window.width : keys) + size.rows), most = fit > size.rows ? size.rows
                                                                                             : fit > 0       ? fit
                                                                                                             : 1;
  for (Index m = first; m < first + count; ++m) {
    if ((rows <= most || rows <= 16) && last_begin == begin(0)) {
      f(Block{m * rows, rows, m * of.capacity + begin(0), keys - begin(0), 1});
      continue;
    }
    for (Index h = 0; h < of.group(); ++h)
      for (Index t = 0, part = 0; t < window.length; t += part) {
        part = window.rows(t, most);
        f(Block{m * rows + h * window.length + t, part, m * of.capacity + begin(t), window.end(t + part - 1) - begin(t),
                1});
      }
  }
}

/// Stores the keys and values of a segment in the cache, and computes equations (1) and (2) of this header.
/// @param q  [N, heads · F] in
/// @param k, v  [N, kv_heads · F] in
/// @param width  the number of keys of a window, or the size of chunks if `chunked`; 0: all keys
/// @param valid  [N] in, 1 for items, 0 for padding; empty: no padding
/// @param context  [N, heads · F] out
/// @param log_sum_exp  [N, heads] out
template <class C, class T, class B>
void attend_cached(C& ctx, const CacheView<T, B>& cache, Index heads, Index kv_heads, double scale, Index width,
                   bool chunked, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> v, In<T, 1, B> valid, Out<T, 2, B> context,
                   Out<T, 2, B> log_sum_exp) {
  const Index items = q.extent(0), length = items / cache.sequences, past = cache.first + cache.items,
              matrices = cache.sequences * kv_heads;
  const View<T, 2, B> all = cache.rows.as(cache.rows.extent(1), cache.rows.extent(2));
  const CachePlaces own{length, cache.capacity, past};
  B::for_rows(ctx, items, functor::StoreKeyValue<T, B>{own, kv_heads, cache.sequences, k, v, all});
  store_valid<C, T, B>(ctx, cache, valid, length);

  const CachedHeads of{heads,
                       kv_heads,
                       cache.capacity,
                       {length, past, width > 0 ? width : past + length + 1, true, chunked, cache.position}};
  const HeadRows of_items{heads, length};
  const View<const T, 2, B> queries = split_heads(ctx, of_items, q), keys = all.rows(0, matrices * cache.capacity),
                            values = all.rows(keys.extent(0), keys.extent(0));
  const Sums<T, B> sums(ctx, ctx.template scratch<T>(queries.extent(0), queries.extent(1)));
  const CacheMask<T, B> mask{of, cache.valid};
  const auto attend = [&](C& here, Index first, Index count) {
    for_each_cache_block(of, first, count, [&](const Block& block) {
      auto mark = here.mark();
      const Products<T, B> products(here, block);
      const View<T, 2, B> w = products.scores(here, queries, keys);
      B::for_rows(here, block.all_rows(),
                  functor::SoftmaxBlock<T, B, CacheMask<T, B>>{mask, block, T(scale), w, sums.top, sums.total,
                                                               sums.scored, sums.sums});
      products.add(here, w, values, sums.sums);
    });
  };
  // The number of scores. A score and its share of the sums of values each take one multiply-add per value of a head.
  const Index scores = matrices * of.rows() * (of.window.width < of.window.keys() ? of.window.width : of.window.keys());
  B::for_tasks(ctx, matrices, attend, 2 * scores * queries.extent(1));
  B::for_rows(ctx, items, functor::AttendFinish<T, B>{of_items, T(scale), sums, context, log_sum_exp, View<T, 2, B>{}});
}

}  // namespace detail_::attending

namespace functor {

/// Copies keys and values of item n to the matrices of their heads in a KV cache. If a value of a head is not finite,
/// all values of this head become 0, and all elements of its key become NaN. The weight of the key is then NaN in all
/// items that attend to it, and the values have no effect on other items.
template <class T, class B>
struct StoreKeyValue {
  detail_::attending::CachePlaces places;
  Index kv_heads, sequences;
  View<const T, 2, B> k, v;  // [N, kv_heads · F]
  View<T, 2, B> to;          // [2 · sequences · kv_heads · capacity, F]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index width = to.extent(1), sequence = n / places.length, row = places(n) - sequence * places.capacity;
    for (Index h = 0; h < kv_heads; ++h) {
      const T *const key = &k(n, h * width), *const value = &v(n, h * width);
      const Index matrix = sequence * kv_heads + h;
      T* const to_key = &to(matrix * places.capacity + row, 0);
      T* const to_value = &to((matrix + sequences * kv_heads) * places.capacity + row, 0);
      const T nan = sum_columns<T>(lanes, width, [&](auto at, Index c) { return at.load(value + c) * T(0); });
      each_column<T>(lanes, width, [&](auto at, Index c) {
        using V = typename decltype(at)::Value;
        at.store(to_key + c, nan == 0 ? at.load(key + c) : V(nan));
        at.store(to_value + c, nan == 0 ? at.load(value + c) : V(T(0)));
      });
    }
  }
};

}  // namespace functor

}  // namespace gatefold
