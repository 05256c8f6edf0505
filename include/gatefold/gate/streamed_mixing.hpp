#pragma once

#include <cmath>
#include <limits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/mixing_blocks.hpp"
#include "gatefold/tensor/view.hpp"

/// Items that share their probabilities, without an N × N matrix: what the mixings of paper 002 have in common.
///
///     w[i,h,j] = softmax over the heads h and the items j that i sees of scale · ⟨queries[h,i], keys[h,j]⟩   (1)
///     q[i,e] = Σ_hj w[i,h,j] r[j,e],   rank[i,e] = log q[i,e]                                            (2)
///
/// Scores are formed block by block (mixing_blocks.hpp) with the backend's products and used at once; forward keeps one
/// log-sum-exp per item, backward forms the scores again. An item that sees nobody keeps its own r. Attention is (1) with
/// values in place of r. Where each item follows one head of its own, (1) is over that head's keys alone.
namespace gatefold {

/// Who sees whom: items of the same sequence, padding nobody and nobody it, with `causal` no later item, and with
/// `entropy` only items at least as sure of themselves (and oneself).
template <class T, class B>
struct Visible {
  Index length = 0;
  bool causal = true;
  View<const T, 1, B> valid{};    // [N] 1 = item, 0 = padding; empty: all are items
  View<const T, 1, B> entropy{};  // [N] or empty: J_i = {j : H(r_j) ≤ H(r_i)} of paper 002, proposition 1

  GATEFOLD_HD bool sees(Index i, Index j) const {
    return (!causal || j <= i) && (!valid.data() || (valid(i) != 0 && valid(j) != 0)) &&
           (!entropy.data() || j == i || entropy(j) <= entropy(i));
  }
};

/// Where the scores of (1) come from. T is const for the input, mutable for its adjoint.
template <class T, class B>
struct MixingHeads {
  View<T, 3, B> queries, keys;         // [H, N, F]; with several heads to follow [1, N, F] rows, [1, heads · N, F]
  mixing::Following<B> following{};
};

namespace mixing {

/// Which keys of a block a row sees, so that a loop over columns needs no branch: a part that ends early where later items
/// are hidden, and a number in the place of a hidden score.
template <class T, class B>
struct Mask {
  Index length;
  bool causal;
  View<const T, 1, B> keys;       // [N] positive: a key; else what its score becomes: −∞ for padding, NaN
  View<const T, 1, B> rows{};     // [N] 0: sees nobody; or empty
  View<const T, 1, B> entropy{};  // [N] or empty: a row sees keys of no larger entropy
  Following<B> following{};       // which items the rows are

  /// The item of row r of a block.
  GATEFOLD_HD Index item(const Block& block, Index r) const { return following.item(block.row + r); }
  GATEFOLD_HD Index count(const Block& block, Index r) const {
    const Index i = item(block, r), before = i + 1 - block.first_key(r);
    if (rows.data() && rows(i) == 0) return 0;
    return !causal || before >= block.keys ? block.keys : before > 0 ? before : 0;
  }
  /// The score of key j for item i.
  template <class A, class V>
  GATEFOLD_HD V seen(const A& at, Index i, Index j, V score) const {
    using math::where_positive;
    const V key = at.load(&keys(j));
    const V v = where_positive(key, score, key);
    return entropy.data() ? where_positive(at.load(&entropy(j)) - entropy(i), V(-T(INFINITY)), v) : v;
  }
};

}  // namespace mixing

namespace fn {

/// Prepare keys for products with weights that are 0 where hidden: values that are not finite become 0, and the key's
/// score NaN instead, so that they reach those who see them and nobody else.
template <class T, class B>
struct MixKeys {
  View<const T, 1, B> valid;   // [N] or empty
  View<const T, 2, B> values;  // [M, E], M a multiple of N
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
    keys(m) = valid.data() && valid(m % valid.size()) == 0 ? -T(INFINITY) : 1 + nan;
  }
};

/// score ← w without its normaliser: exp(scale · (score − the row's largest so far)), 0 where hidden. What the row has of
/// (2) is rescaled when a larger score comes. With t = scale · (score − the largest), the entropy of the weights is
/// log Σ e^t − Σ t e^t / Σ e^t, both parts at least 0.
template <class T, class B>
struct MixBlock {
  mixing::Mask<T, B> mask;
  mixing::Block block;
  T scale;
  View<T, 2, B> score;       // [rows, keys] of the block
  View<T, 1, B> top, total;  // [N] of rows
  View<T, 1, B> scored;      // [N] of rows Σ t e^t; or empty
  View<T, 2, B> q;           // [N, E] of rows

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index to = block.row + row, i = mask.item(block, row), key = block.first_key(row), count = mask.count(block, row);
    const auto seen = [&](auto at, Index j) { return mask.seen(at, i, key + j, at.load(&score(row, j))); };
    const T highest = max_columns<T>(lanes, count, seen), before = top(to), best = highest > before ? highest : before;
    const T shift = best == -T(INFINITY) ? T(0) : best, keep = best == before ? T(1) : std::exp(scale * (before - best));
    using math::exp;
    using math::where_positive;
    const auto exponent = [&](auto at, Index j) { return (seen(at, j) - shift) * scale; };
    // What needs no sum goes first, and the largest before is read again at the end: fewer values are live meanwhile.
    hide(lanes, score, row, count);
    if (keep != 1)
      each_column<T>(lanes, q.extent(1), [&](auto at, Index e) { at.store(&q(to, e), at.load(&q(to, e)) * keep); });
    TwoValues<T> more{0, 0};
    if (scored.data()) {
      more = sum_two_columns<T>(lanes, count, [&](auto at, Index j) {
        const auto t = exponent(at, j), w = exp(t);
        at.store(&score(row, j), w);
        return TwoValues{w, where_positive(w, w * t, w)};
      });
    } else {
      more.first = sum_columns<T>(lanes, count, [&](auto at, Index j) {
        const auto w = exp(exponent(at, j));
        at.store(&score(row, j), w);
        return w;
      });
    }
    if (lanes.lane != 0) return;
    if (scored.data()) {
      const T all = total(to) > 0 ? scored(to) + total(to) * scale * (top(to) - best) : T(0);
      scored(to) = (keep > 0 ? keep * all : T(0)) + more.second;
    }
    total(to) = total(to) * keep + more.first;
    top(to) = best;
  }

  /// The keys after those that a row may see.
  template <class Lanes>
  GATEFOLD_HD static void hide(const Lanes& lanes, View<T, 2, B> of, Index row, Index count) {
    each_column<T>(lanes, of.extent(1) - count, [&](auto at, Index j) {
      using V = typename decltype(at)::Value;
      at.store(of.data() + row * of.extent(1) + count + j, V(T(0)));
    });
  }
};

/// Normalise (2). Where q is too small for its logarithm to be exact, log q is summed from log w + log r instead.
template <class T, class B>
struct MixFinish {
  Visible<T, B> visible;
  MixingHeads<const T, B> heads;
  T scale, tiny;
  View<const T, 2, B> r, log_r;
  View<const T, 1, B> top, total;  // [N] of rows
  View<const T, 2, B> sums;        // [N, E] of rows; where rows are items, q's memory
  View<T, 2, B> q, log_q;          // [N, E]
  View<T, 1, B> log_sum_exp;       // [N]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index experts = q.extent(1), i = heads.following.item(row);
    if (total(row) == 0) {
      each_column<T>(lanes, experts, [&](auto at, Index e) {
        at.store(&q(i, e), at.load(&r(i, e)));
        at.store(&log_q(i, e), at.load(&log_r(i, e)));
      });
      if (lanes.lane == 0) log_sum_exp(i) = -T(INFINITY);
      return;
    }
    const T normaliser = scale * top(row) + std::log(total(row));
    if (lanes.lane == 0) log_sum_exp(i) = normaliser;
    T small = 0;
    for (Index e = lanes.lane; e < experts; e += lanes.size) {
      q(i, e) = sums(row, e) / total(row);
      small += q(i, e) < tiny ? T(1) : T(0);
      log_q(i, e) = q(i, e) < tiny ? -T(INFINITY) : std::log(q(i, e));
    }
    if (lanes.sum(small) == 0) return;
    const Index first = i / visible.length * visible.length, dim = heads.queries.extent(2);
    for (Index h = 0; h < heads.queries.extent(0); ++h)
      for (Index j = first; j < first + visible.length; ++j) {
        if (!visible.sees(i, j)) continue;
        const Index key = heads.following.key_for(i, j);
        const T dot = sum_columns<T>(lanes, dim, [&](auto at, Index d) {
          return at.load(&heads.queries(h, row, d)) * at.load(&heads.keys(h, key, d));
        });
        const T log_w = scale * dot - normaliser;
        for (Index e = lanes.lane; e < experts; e += lanes.size)
          if (q(i, e) < tiny) log_q(i, e) = log_add(log_q(i, e), log_w + log_r(j, e));
      }
  }

  /// log(exp a + exp b)
  GATEFOLD_HD static T log_add(T a, T b) {
    if (a == -T(INFINITY)) return b;
    if (b == -T(INFINITY)) return a;
    return a > b ? a + std::log1p(std::exp(b - a)) : b + std::log1p(std::exp(a - b));
  }
};

/// g = dq + drank / q, which is the adjoint of (2) all told; Σ_e g q, which the softmax takes off. An item that saw nobody
/// kept its own r: dr = g.
template <class T, class B>
struct MixAdjoint {
  View<const T, 2, B> q, dq, drank;
  View<const T, 1, B> log_sum_exp;
  T smallest;  // normal number: below, the quotient may overflow
  mixing::Following<B> following;
  View<T, 2, B> dr;
  View<T, 2, B> g;     // of rows
  View<T, 1, B> mean;  // of rows

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = following.item(row);
    T total = 0;
    for (Index e = lanes.lane; e < q.extent(1); e += lanes.size) {
      g(row, e) = dq(i, e) + (q(i, e) >= smallest ? drank(i, e) / q(i, e) : T(0));
      dr(i, e) = log_sum_exp(i) == -T(INFINITY) ? g(row, e) : T(0);
      total += g(row, e) * q(i, e);
    }
    total = lanes.sum(total);
    if (lanes.lane == 0) mean(row) = total;
  }
};
/// score → scale · w (⟨g_i, r_j⟩ − mean_i), slope = ⟨g_i, r_j⟩ → w
template <class T, class B>
struct MixBlockBackward {
  mixing::Mask<T, B> mask;
  mixing::Block block;
  T scale;
  View<const T, 1, B> log_sum_exp;  // [N]
  View<const T, 1, B> mean;         // [N] of rows
  View<T, 2, B> score, slope;       // [rows, keys]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = mask.item(block, row), key = block.first_key(row), count = mask.count(block, row);
    const T normaliser = log_sum_exp(i), shift = mean(block.row + row);
    each_column<T>(lanes, count, [&](auto at, Index j) {
      using math::exp;
      using math::where_positive;
      const auto w = exp(mask.seen(at, i, key + j, at.load(&score(row, j))) * scale - normaliser);
      // NaN stays NaN, and 0 is 0 whatever the slope is.
      at.store(&score(row, j), where_positive(w, w * scale * (at.load(&slope(row, j)) - shift), w));
      at.store(&slope(row, j), w);
    });
    MixBlock<T, B>::hide(lanes, score, row, count);
    MixBlock<T, B>::hide(lanes, slope, row, count);
  }
};

/// H(p_n) = −Σ_e p log p in nats, with 0 log 0 = 0; ∞ where p is not a number, so that nobody else sees the item.
template <class T, class B>
struct RowEntropy {
  View<const T, 2, B> p, log_p;
  View<T, 1, B> entropy;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const T total = sum_columns<T>(lanes, p.extent(1), [&](auto at, Index e) {
      using math::where_positive;
      const auto v = at.load(&p(n, e));
      return where_positive(v, v * at.load(&log_p(n, e)), v);
    });
    if (lanes.lane == 0) entropy(n) = total <= 0 ? -total : T(INFINITY);
  }
};

/// to[h,n,:] = columns of head h of from[n,:]
template <class T, class B>
struct SplitHeads {
  View<const T, 2, B> from;  // [N, H · width]
  View<T, 3, B> to;          // [H, N, width]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index k) const {
    const Index n = k % to.extent(1), h = k / to.extent(1), width = to.extent(2);
    each_column<T>(lanes, width, [&](auto at, Index c) { at.store(&to(h, n, c), at.load(&from(n, h * width + c))); });
  }
};
/// columns of head h of to[n,:] += from[h,n,:]
template <class T, class B>
struct AddHeads {
  View<const T, 3, B> from;  // [H, N, width]
  View<T, 2, B> to;          // [N, H · width]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index k) const {
    const Index n = k % from.extent(1), h = k / from.extent(1), width = from.extent(2);
    each_column<T>(lanes, width, [&](auto at, Index c) {
      T* const sum = &to(n, h * width + c);
      at.store(sum, at.load(sum) + at.load(&from(h, n, c)));
    });
  }
};

}  // namespace fn

namespace mixing {

/// The softmax of (1) under way: what a head adds to it. Lives in scratch.
template <class T, class B>
struct Sums {
  View<T, 1, B> top, total;  // [N] of rows: largest score, sum of the weights relative to it
  View<T, 2, B> sums;        // [N, E] of rows: weighted sum of the values
  View<T, 1, B> scored{};    // [N] of rows: what the entropy of the weights is made of (fn::MixBlock); or empty

  template <class C>
  Sums(C& ctx, View<T, 2, B> out, bool with_entropy = false)
      : top(ctx.template scratch<T>(out.extent(0))), total(ctx.template scratch<T>(out.extent(0))), sums(out) {
    if (with_entropy) {
      scored = ctx.template scratch<T>(out.extent(0));
      fill(ctx, scored, 0);
    }
    fill(ctx, top, -std::numeric_limits<T>::infinity());
    fill(ctx, total, 0);
    fill(ctx, sums, 0);
  }
};
/// @order keys in ascending order; with a causal mask, an item's numbers do not depend on later items in any bit
template <class C, class T, class B>
void add_head(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale, const Mask<T, B>& mask,
              View<const T, 2, B> values, const Sums<T, B>& to) {
  const Following<B>& following = mask.following;
  for_each_block(ctx, queries.extent(0), mask.length, mask.causal, following.block_size(), [&](C& own, const Block& block) {
    auto mark = own.mark();
    const View<T, 2, B> w = Products<T, B>(own, block, following).scores(own, queries, keys);
    B::for_rows(own, block.all_rows(),
                fn::MixBlock<T, B>{mask, block, T(scale), w, to.top, to.total, to.scored, to.sums});
    Products<T, B>(own, block).add(own, w, values, to.sums);
  });
}
/// The adjoint of one head, given that of the weighted sums: adds to dvalues, dqueries, dkeys.
/// @param mean, dsums  [N], [N, E] of rows: what the softmax takes off ⟨dsums_i, values_j⟩, and dsums
template <class C, class T, class B>
void add_head_backward(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale,
                       const Mask<T, B>& mask, View<const T, 2, B> values, View<const T, 1, B> log_sum_exp,
                       View<const T, 1, B> mean, View<const T, 2, B> dsums, View<T, 2, B> dvalues,
                       View<T, 2, B> dqueries, View<T, 2, B> dkeys) {
  const Following<B>& following = mask.following;
  for_each_block(ctx, queries.extent(0), mask.length, mask.causal, following.block_size(), [&](C& own, const Block& block) {
    auto mark = own.mark();
    const Products<T, B> of_values(own, block), of_head(own, block, following);
    const View<T, 2, B> d = of_head.scores(own, queries, keys), w = of_values.scores(own, dsums, values);
    B::for_rows(own, block.all_rows(),
                fn::MixBlockBackward<T, B>{mask, block, T(scale), log_sum_exp, mean, d, w});
    of_values.add_transposed(own, w, dsums, dvalues);
    of_head.add(own, d, keys, dqueries);
    of_head.add_transposed(own, d, queries, dkeys);
  });
}

/// Keys for add_head, in scratch: the mask, and the values without what is not finite.
template <class T, class B>
struct Keys {
  View<T, 1, B> mask;    // [M]
  View<T, 2, B> values;  // [M, E]

  template <class C>
  Keys(C& ctx, View<const T, 1, B> valid, View<const T, 2, B> of)
      : mask(ctx.template scratch<T>(of.extent(0))), values(ctx.template scratch<T>(of.extent(0), of.extent(1))) {
    B::for_rows(ctx, of.extent(0), fn::MixKeys<T, B>{valid, of, mask, values});
  }
};

template <class T, class B>
View<T, 2, B> head(View<T, 3, B> of_heads, Index h) {
  const Index rows = of_heads.extent(1), columns = of_heads.extent(2);
  return {of_heads.data() + h * rows * columns, rows, columns};
}
/// All heads one below the other: [H, N, F] as [H · N, F], so that (h, n) is an item of N / L sequences more.
template <class T, class B>
View<T, 2, B> stacked(View<T, 3, B> of_heads) {
  return {of_heads.data(), of_heads.extent(0) * of_heads.extent(1), of_heads.extent(2)};
}
/// [N, D] as [heads, N, D / heads], in scratch
template <class C, class T, class B>
View<T, 3, B> split_heads(C& ctx, View<const T, 2, B> x, Index heads) {
  auto split = ctx.template scratch<T>(heads, x.extent(0), x.extent(1) / heads);
  B::for_rows(ctx, heads * x.extent(0), fn::SplitHeads<T, B>{x, split});
  return split;
}

template <class T, class B>
Mask<T, B> mask_of(const Visible<T, B>& visible, const Keys<T, B>& keys, const Following<B>& following) {
  return {visible.length, visible.causal, keys.mask, visible.valid, visible.entropy, following};
}

/// Equations (1) and (2), scale > 0. Writes q, log_q [N, E] and log_sum_exp [N] (−∞ for an item that sees nobody).
/// @cost  2·H·N·L·F flop for the scores (half if causal), 2·H·N·L·E more, H = 1 where items follow a head; scratch of one
///        block and N·E
/// @order keys in ascending order; with `causal`, an item's numbers do not depend on later items in any bit
template <class C, class T, class B>
void forward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
             View<const T, 2, B> r, View<const T, 2, B> log_r, View<T, 2, B> q, View<T, 2, B> log_q,
             View<T, 1, B> log_sum_exp) {
  auto mark = ctx.mark();
  const T tiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  const Keys<T, B> keys(ctx, visible.valid, r);
  const Sums<T, B> sums(ctx, heads.following.heads > 1 ? ctx.template scratch<T>(q.extent(0), q.extent(1)) : q);
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    add_head<C, T, B>(ctx, head(heads.queries, h), head(heads.keys, h), scale, mask_of(visible, keys, heads.following),
                      keys.values, sums);
  B::for_rows(ctx, q.extent(0), fn::MixFinish<T, B>{visible, heads, T(scale), tiny, r, log_r, sums.top, sums.total,
                                                   sums.sums, q, log_q, log_sum_exp});
}

/// The adjoint: writes dr [N, E], adds to the members of dheads.
/// Experts whose q underflows pass no gradient from their rank. An item that holds NaN has NaN gradients, and so have the
/// items that share a block of keys with it, causal or not; padding is left out (its x must be finite: ComposedGate sees
/// to it).
/// @cost  6·H·N·L·F flop (half if causal), N·L·(H + 4·E) more; scratch of two blocks and N·E
template <class C, class T, class B>
void backward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
              View<const T, 2, B> r, View<const T, 2, B> q, View<const T, 1, B> log_sum_exp, View<const T, 2, B> drank,
              View<const T, 2, B> dq, View<T, 2, B> dr, const MixingHeads<T, B>& dheads) {
  auto mark = ctx.mark();
  const Keys<T, B> keys(ctx, visible.valid, r);
  auto g = ctx.template scratch<T>(q.extent(0), q.extent(1));
  auto mean = ctx.template scratch<T>(q.extent(0));
  B::for_rows(ctx, q.extent(0), fn::MixAdjoint<T, B>{q, dq, drank, log_sum_exp, std::numeric_limits<T>::min(),
                                                    heads.following, dr, g, mean});
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    add_head_backward<C, T, B>(ctx, head(heads.queries, h), head(heads.keys, h), scale,
                               mask_of(visible, keys, heads.following), keys.values, log_sum_exp, mean, g, dr,
                               head(dheads.queries, h), head(dheads.keys, h));
}

/// H(r_n) for the option that an item listens only to items at least as sure as itself.
template <class C, class T, class B>
View<T, 1, B> entropies(C& ctx, View<const T, 2, B> r, View<const T, 2, B> log_r) {
  auto entropy = ctx.template scratch<T>(r.extent(0));
  B::for_rows(ctx, r.extent(0), fn::RowEntropy<T, B>{r, log_r, entropy});
  return entropy;
}

}  // namespace mixing
}  // namespace gatefold
