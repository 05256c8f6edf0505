#pragma once

#include <cmath>

#include "gatefold/attention/heads.hpp"
#include "gatefold/attention/window.hpp"
#include "gatefold/backend/math.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CleanKeys);

namespace detail_::attending {

/// The mask of a block of attention scores, in a form that needs no branch in a loop over columns. The visible columns
/// of a row are a range. With a causal mask, the range ends at the row's item. Within the range, each hidden key has a
/// number that replaces its score.
template <class T, class B>
struct Mask {
  Index length;
  bool causal;
  // [N] If the value is positive, the key is visible. Otherwise, the value replaces the key's score: −∞ for padding, or
  // NaN (see functor::CleanKeys).
  View<const T, 1, B> keys;
  View<const T, 1, B> rows{};     // [N] an item whose value is 0 or less attends to no keys; empty: all attend
  View<const T, 1, B> entropy{};  // [N] an item attends only to items whose entropy is not above its own; empty: to all
  Following<B> following{};       // maps rows to items
  InUse<B> in_use{};              // the range of rows that are computed
  Window window{};                // if width > 0, only keys in this window are visible; `causal` must then be true

  /// Returns the item (token) whose scores are in row r of a block.
  GATEFOLD_HD Index item(const Block& block, Index r) const { return following.item(block.row + r); }
  /// Returns the first column of the block that row r attends to.
  GATEFOLD_HD Index first(const Block& block, Index r) const {
    return window.width > 0 ? window.seen(block, item(block, r)).first : 0;
  }
  GATEFOLD_HD Index count(const Block& block, Index r) const {
    const Index i = item(block, r), before = i + 1 - block.first_key(r);
    if (rows.data() && rows(i) <= 0) return 0;
    if (window.width > 0) return window.seen(block, i).count;
    return !causal || before >= block.keys ? block.keys : before > 0 ? before : 0;
  }
  /// Returns the score of key j for item i or, if the key is hidden, the value that replaces its score.
  template <class A, class V>
  GATEFOLD_HD V seen(const A& at, Index i, Index j, V score) const {
    using functor::math::where_positive;
    const V key = at.load(&keys(j));
    const V v = where_positive(key, score, key);
    return entropy.data() ? where_positive(at.load(&entropy(j)) - entropy(i), V(-T(INFINITY)), v) : v;
  }
};

/// The mask and the values of the keys of an attention, in scratch memory. They have M rows, one for each key and head
/// (HeadRows), and E values in each row. functor::CleanKeys computes both: if a value of a row is not finite, all
/// values of this row become 0.
template <class T, class B>
struct Keys {
  View<T, 1, B> mask;    // [M]
  View<T, 2, B> values;  // [M, E]

  /// Cleans the values of all keys and computes their mask.
  /// @param of  [M, E] in, the values of the keys, with the rows of all heads
  template <class C>
  Keys(C& ctx, View<const T, 1, B> valid, View<const T, 2, B> of, HeadRows heads = {}, const InUse<B>& in_use = {})
      : mask(ctx.template scratch<T>(of.extent(0))), values(ctx.template scratch<T>(of.extent(0), of.extent(1))) {
    for_rows(ctx, of.extent(0), in_use, functor::CleanKeys<T, B>{heads, valid, of, mask, values});
  }
};

}  // namespace detail_::attending

namespace functor {

/// Replaces values that are not finite, so that they do not affect rows from which their key is hidden. In these rows,
/// the weight of the key is 0, but 0 · NaN is NaN. Therefore all values of the key become 0, and its score becomes NaN
/// instead (the score of padding stays −∞). The NaN then affects only the rows to which the key is visible.
template <class T, class B>
struct CleanKeys {
  detail_::attending::HeadRows heads;
  View<const T, 1, B> valid;   // [N] mask of padding; empty: no padding
  View<const T, 2, B> values;  // [M, E] rows of all heads
  View<T, 1, B> keys;          // [M] mask of the keys, see Mask::keys
  View<T, 2, B> clean;         // [M, E]

  GATEFOLD_HD void operator()(const auto& lanes, Index m) const {
    const Index columns = values.extent(1);
    const T nan = sum_columns<T>(lanes, columns, [&](auto at, Index e) { return at.load(&values(m, e)) * T(0); });
    each_column<T>(lanes, columns, [&](auto at, Index e) {
      using V = typename decltype(at)::Value;
      at.store(&clean(m, e), nan == 0 ? at.load(&values(m, e)) : V(T(0)));
    });
    if (lanes.lane != 0) return;
    keys(m) = valid.data() && valid(heads.item(m)) == 0 ? -T(INFINITY) : 1 + nan;
  }
};

}  // namespace functor

}  // namespace gatefold
