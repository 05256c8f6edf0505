#pragma once

#include "gatefold/attention/blocks.hpp"
#include "gatefold/attention/following.hpp"
#include "gatefold/attention/window.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/math.hpp"

/// Adds position keys to attention scores. Each place o in the window of an item has a key places_o, in addition to the
/// keys of items:
///
///     score[i,j] = ⟨queries_i, keys_j⟩ + ⟨queries_i, places_o⟩,   o the place of key j in the window of i   (1)
///
/// Source: Shaw et al. 2018, arXiv:1803.02155, eq. (5).
namespace gatefold {

namespace functor {

/// Adds the score of the position key, position[i,o], to score[i,j] for each key j in the window of row i, with o the
/// place of key j in this window. If keys[j] is not positive, key j is hidden, and the score becomes keys[j] (−∞ or
/// NaN).
template <class T, class B>
struct WindowScores {
  detail_::attending::Window window;
  detail_::attending::Block block;
  View<const T, 1, B> keys;      // [M] positive: visible key; otherwise the value replaces its score (Mask::keys)
  View<const T, 2, B> position;  // [rows, width] scores of the position keys; empty: none
  View<T, 2, B> score;           // [rows, keys] scores of the block
  detail_::attending::Following<B> following{};

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const auto [first, count, place] = window.seen(block, following.item(block.row + row));
    T* const seen = score.data() + row * block.keys + first;
    const T* const key = keys.data() + block.first_key(row) + first;
    const T* const of_place = position.data() ? position.data() + row * window.width + place : nullptr;
    each_column<T>(lanes, count, [&](auto at, Index j) {
      using functor::math::where_positive;
      const auto flag = at.load(key + j), s = at.load(seen + j);
      at.store(seen + j, where_positive(flag, of_place ? s + at.load(of_place + j) : s, flag));
    });
  }
};
/// Writes the gradient of the scores of position keys: to[i,o] = score[i,j] for each key j in the window of row i, with
/// o the place of key j in this window.
template <class T, class B>
struct WindowPlaces {
  detail_::attending::Window window;
  detail_::attending::Block block;
  View<const T, 2, B> score;  // [rows, keys] gradients of the block's scores
  View<T, 2, B> to;           // [rows, width]
  detail_::attending::Following<B> following{};

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const auto [first, count, place] = window.seen(block, following.item(block.row + row));
    const T* const from = score.data() + row * block.keys + first;
    T* const of_place = to.data() + row * window.width + place;
    each_column<T>(lanes, count, [&](auto at, Index j) { at.store(of_place + j, at.load(from + j)); });
  }
};

}  // namespace functor

namespace detail_::attending {

/// Returns the scores of position keys for the rows of a block, ⟨queries_i, places_o⟩ [rows, width], in scratch memory.
/// Returns an empty view if there are no position keys.
/// @param places  [width, F] the position keys
template <class C, class T, class B>
View<const T, 2, B> position_scores(C& ctx, const Block& block, View<const T, 2, B> queries, In<T, 2, B> places) {
  if (places.empty()) return {};
  auto position = ctx.template scratch<T>(block.all_rows(), places.extent(0));
  B::gemm(ctx, queries.rows(block.row, block.all_rows()), false, places, true, false, position, functor::Store{});
  return position;
}
/// Backward pass of position_scores. Returns the gradient of the position scores, [rows, width], in scratch memory.
/// Adds the gradient of the queries to dqueries.
/// @param dscore  [rows, keys] gradient of the block's scores; 0 for keys that are not visible to a row
template <class C, class T, class B>
View<const T, 2, B> position_scores_backward(C& ctx, const Block& block, const Window& window,
                                             const Following<B>& following, View<const T, 2, B> dscore,
                                             In<T, 2, B> places, View<T, 2, B> dqueries) {
  const View<T, 2, B> dposition = ctx.template scratch<T>(block.all_rows(), places.extent(0));
  fill(ctx, dposition, 0);
  B::for_rows(ctx, block.all_rows(), functor::WindowPlaces<T, B>{window, block, dscore, dposition, following});
  B::gemm(ctx, View<const T, 2, B>(dposition), false, places, false, true, dqueries.rows(block.row, block.all_rows()),
          functor::Store{});
  return dposition;
}

}  // namespace detail_::attending
}  // namespace gatefold
