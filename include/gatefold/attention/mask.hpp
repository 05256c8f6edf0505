#pragma once

#include <cmath>

#include "gatefold/attention/blocks.hpp"
#include "gatefold/attention/following.hpp"
#include "gatefold/attention/heads.hpp"
#include "gatefold/attention/window.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

namespace detail_::attending {

/// Which keys of a block a row sees, so that a loop over columns needs no branch: a part that ends early where later
/// items are hidden, and a number in the place of a hidden score.
template <class T, class B>
struct Mask {
  Index length;
  bool causal;
  View<const T, 1, B> keys;       // [N] positive: a key; else what its score becomes: −∞ for padding, NaN
  View<const T, 1, B> rows{};     // [N] 0 or less: sees nobody; or empty
  View<const T, 1, B> entropy{};  // [N] or empty: a row sees keys of no larger entropy
  Following<B> following{};       // which items the rows are
  InUse<B> in_use{};              // which rows there are
  Window window{};                // which of the earlier items are keys, where not all are: causal, without a past

  /// The item of row r of a block.
  GATEFOLD_HD Index item(const Block& block, Index r) const { return following.item(block.row + r); }
  /// The columns of the block that a row sees: `count` of them from `first` on.
  GATEFOLD_HD Index first(const Block& block, Index r) const {
    return window.width > 0 ? window.seen(block, item(block, r)).first : 0;
  }
  GATEFOLD_HD Index count(const Block& block, Index r) const {
    const Index i = item(block, r), before = i + 1 - block.first_key(r);
    if (rows.data() && rows(i) <= 0) return 0;
    if (window.width > 0) return window.seen(block, i).count;
    return !causal || before >= block.keys ? block.keys : before > 0 ? before : 0;
  }
  /// The score of key j for item i.
  template <class A, class V>
  GATEFOLD_HD V seen(const A& at, Index i, Index j, V score) const {
    using functor::math::where_positive;
    const V key = at.load(&keys(j));
    const V v = where_positive(key, score, key);
    return entropy.data() ? where_positive(at.load(&entropy(j)) - entropy(i), V(-T(INFINITY)), v) : v;
  }
};

}  // namespace detail_::attending

namespace functor {

/// Prepare keys for products with weights that are 0 where hidden: values that are not finite become 0, and the key's
/// score NaN instead, so that they reach those who see them and nobody else.
template <class T, class B>
struct CleanKeys {
  detail_::attending::HeadRows heads;
  View<const T, 1, B> valid;   // [N] or empty
  View<const T, 2, B> values;  // [M, E], the rows of all heads
  View<T, 1, B> keys;          // [M]
  View<T, 2, B> clean;         // [M, E]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index m) const {
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

namespace detail_::attending {

/// Keys of a block's products, in scratch: the mask, and the values without what is not finite.
template <class T, class B>
struct Keys {
  View<T, 1, B> mask;    // [M]
  View<T, 2, B> values;  // [M, E]

  /// @param of  [M, E] rows of all heads
  template <class C>
  Keys(C& ctx, View<const T, 1, B> valid, View<const T, 2, B> of, HeadRows heads = {}, const InUse<B>& in_use = {})
      : mask(ctx.template scratch<T>(of.extent(0))), values(ctx.template scratch<T>(of.extent(0), of.extent(1))) {
    for_rows(ctx, of.extent(0), in_use, functor::CleanKeys<T, B>{heads, valid, of, mask, values});
  }
};

}  // namespace detail_::attending
}  // namespace gatefold
