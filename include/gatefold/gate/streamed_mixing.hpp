#pragma once

#include <cmath>
#include <limits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/one_group.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Items that share their probabilities, without an N × N matrix: what the mixings of paper 002 have in common.
///
///     w[i,h,j] = softmax over the heads h and the items j that i sees of scale · ⟨queries[h,i], keys[h,j]⟩   (1)
///     q[i,e] = Σ_hj w[i,h,j] r[j,e],   rank[i,e] = log q[i,e]                                            (2)
///
/// Scores are formed block by block with the backend's products and used at once; forward keeps one log-sum-exp per item,
/// backward forms the scores again. An item that sees nobody keeps its own r. A block is a part of one long sequence, or
/// several short ones, which a grouped product takes at once. Attention is (1) with values in place of r, and uses the
/// same blocks.
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
  View<T, 3, B> queries, keys;  // [H, N, F]
};

namespace mixing {

/// Rows against keys: those of `sequences` whole sequences, each against its own, or a part of one sequence.
struct Block {
  Index row, rows, key, keys, sequences;  // first and number, of each sequence

  GATEFOLD_HD Index all_rows() const { return rows * sequences; }
  /// The first key that row r of the block meets.
  GATEFOLD_HD Index first_key(Index r) const { return sequences == 1 ? key : key + r / rows * keys; }
};

/// Which keys of a block a row sees, so that a loop over columns needs no branch: a part that ends early where later items
/// are hidden, and a number in the place of a hidden score.
template <class T, class B>
struct Mask {
  Index length;
  bool causal;
  View<const T, 1, B> keys;       // [N] positive: a key; else what its score becomes: −∞ for padding, NaN
  View<const T, 1, B> rows{};     // [N] 0: sees nobody; or empty
  View<const T, 1, B> entropy{};  // [N] or empty: a row sees keys of no larger entropy

  GATEFOLD_HD Index count(const Block& block, Index r) const {
    const Index i = block.row + r, before = i + 1 - block.first_key(r);
    if (rows.data() && rows(i) == 0) return 0;
    return !causal || before >= block.keys ? block.keys : before > 0 ? before : 0;
  }
  /// The score of key j for row i.
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
/// (2) is rescaled when a larger score comes.
template <class T, class B>
struct MixBlock {
  mixing::Mask<T, B> mask;
  mixing::Block block;
  T scale;
  View<T, 2, B> score;       // [rows, keys] of the block
  View<T, 1, B> top, total;  // [N]
  View<T, 2, B> q;           // [N, E]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = block.row + row, key = block.first_key(row), count = mask.count(block, row);
    const auto seen = [&](auto at, Index j) { return mask.seen(at, i, key + j, at.load(&score(row, j))); };
    const T highest = max_columns<T>(lanes, count, seen), before = top(i), best = highest > before ? highest : before;
    const T shift = best == -T(INFINITY) ? T(0) : best, keep = best == before ? T(1) : std::exp(scale * (before - best));
    const T more = sum_columns<T>(lanes, count, [&](auto at, Index j) {
      using math::exp;
      const auto w = exp((seen(at, j) - shift) * scale);
      at.store(&score(row, j), w);
      return w;
    });
    hide(lanes, score, row, count);
    if (keep != 1)
      each_column<T>(lanes, q.extent(1), [&](auto at, Index e) { at.store(&q(i, e), at.load(&q(i, e)) * keep); });
    if (lanes.lane != 0) return;
    top(i) = best;
    total(i) = total(i) * keep + more;
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
  View<const T, 1, B> top, total;  // [N]
  View<T, 2, B> q, log_q;          // [N, E]
  View<T, 1, B> log_sum_exp;       // [N]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index i) const {
    const Index experts = q.extent(1);
    if (total(i) == 0) {
      each_column<T>(lanes, experts, [&](auto at, Index e) {
        at.store(&q(i, e), at.load(&r(i, e)));
        at.store(&log_q(i, e), at.load(&log_r(i, e)));
      });
      if (lanes.lane == 0) log_sum_exp(i) = -T(INFINITY);
      return;
    }
    const T normaliser = scale * top(i) + std::log(total(i));
    if (lanes.lane == 0) log_sum_exp(i) = normaliser;
    T small = 0;
    for (Index e = lanes.lane; e < experts; e += lanes.size) {
      q(i, e) /= total(i);
      small += q(i, e) < tiny ? T(1) : T(0);
      log_q(i, e) = q(i, e) < tiny ? -T(INFINITY) : std::log(q(i, e));
    }
    if (lanes.sum(small) == 0) return;
    const Index first = i / visible.length * visible.length, dim = heads.queries.extent(2);
    for (Index h = 0; h < heads.queries.extent(0); ++h)
      for (Index j = first; j < first + visible.length; ++j) {
        if (!visible.sees(i, j)) continue;
        const T dot = sum_columns<T>(lanes, dim, [&](auto at, Index d) {
          return at.load(&heads.queries(h, i, d)) * at.load(&heads.keys(h, j, d));
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
  View<T, 2, B> g, dr;
  View<T, 1, B> mean;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index i) const {
    T total = 0;
    for (Index e = lanes.lane; e < q.extent(1); e += lanes.size) {
      g(i, e) = dq(i, e) + (q(i, e) >= smallest ? drank(i, e) / q(i, e) : T(0));
      dr(i, e) = log_sum_exp(i) == -T(INFINITY) ? g(i, e) : T(0);
      total += g(i, e) * q(i, e);
    }
    total = lanes.sum(total);
    if (lanes.lane == 0) mean(i) = total;
  }
};
/// score → scale · w (⟨g_i, r_j⟩ − mean_i), slope = ⟨g_i, r_j⟩ → w
template <class T, class B>
struct MixBlockBackward {
  mixing::Mask<T, B> mask;
  mixing::Block block;
  T scale;
  View<const T, 1, B> log_sum_exp, mean;  // [N]
  View<T, 2, B> score, slope;             // [rows, keys]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = block.row + row, key = block.first_key(row), count = mask.count(block, row);
    const T normaliser = log_sum_exp(i), shift = mean(i);
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

inline constexpr Index rows_per_block = 128, keys_per_block = 512;

/// Call f(context, block) for blocks that cover the pairs of rows and keys of every sequence, those of a row in ascending
/// order of keys. Blocks of different sequences may be at work at once.
template <class C, class F>
void for_each_block(C& ctx, Index items, Index length, bool causal, const F& f) {
  using B = typename C::Backend;
  if (items == 0) return;
  if (length <= rows_per_block) {
    const Index sequences = items / length, together = rows_per_block * keys_per_block / (length * length);
    B::for_tasks(ctx, (sequences + together - 1) / together, [&](C& of_task, Index task) {
      const Index row = task * together * length, left = sequences - task * together;
      f(of_task, Block{row, length, row, length, left < together ? left : together});
    });
    return;
  }
  B::for_tasks(ctx, items / length, [&](C& of_task, Index sequence) {
    const Index begin = sequence * length;
    for (Index row = begin; row < begin + length; row += rows_per_block) {
      const Index rows = row + rows_per_block < begin + length ? rows_per_block : begin + length - row;
      const Index end = causal ? row + rows : begin + length;
      for (Index key = begin; key < end; key += keys_per_block)
        f(of_task, Block{row, rows, key, key + keys_per_block < end ? keys_per_block : end - key, 1});
    }
  });
}

/// `count` groups of `rows` slots each, in scratch.
template <class C>
auto even_groups(C& ctx, Index count, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(count + 1);
  B::for_each(ctx, count + 1, fn::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, count * rows};
}

/// The products of a block: every sequence is an expert whose weights are its keys. The offsets live in scratch.
template <class T, class B>
struct Products {
  Block block;
  Groups<B> groups;

  template <class C>
  Products(C& ctx, const Block& of) : block(of), groups(even_groups(ctx, of.sequences, of.rows)) {}
  /// s[i,j] = ⟨queries_i, keys_j⟩, in scratch
  template <class C>
  View<T, 2, B> scores(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys) const {
    auto s = ctx.template scratch<T>(block.all_rows(), block.keys);
    B::grouped_gemm(ctx, groups, rows(queries), of_keys(keys), true, s, fn::Store{});
    return s;
  }
  /// y_i += Σ_j s[i,j] x_j
  template <class C>
  void add(C& ctx, View<const T, 2, B> s, View<const T, 2, B> x, View<T, 2, B> y) const {
    B::grouped_gemm(ctx, groups, s, of_keys(x), false, rows(y), fn::AddTo<T, B>{rows(y)});
  }
  /// x_j += Σ_i s[i,j] y_i
  template <class C>
  void add_transposed(C& ctx, View<const T, 2, B> s, View<const T, 2, B> y, View<T, 2, B> x) const {
    B::grouped_outer(ctx, groups, s, rows(y), of_keys(x));
  }

 private:
  template <class V>
  V rows(const V& of_items) const {
    return of_items.rows(block.row, block.all_rows());
  }
  template <class V>
  auto of_keys(const V& of_items) const {
    return of_items.rows(block.key, block.keys * block.sequences).as(block.sequences, block.keys, of_items.extent(1));
  }
};

/// The softmax of (1) under way: what a head adds to it. Lives in scratch.
template <class T, class B>
struct Sums {
  View<T, 1, B> top, total;  // [N] largest score, sum of the weights relative to it
  View<T, 2, B> sums;        // [N, E] weighted sum of the values

  template <class C>
  Sums(C& ctx, View<T, 2, B> out)
      : top(ctx.template scratch<T>(out.extent(0))), total(ctx.template scratch<T>(out.extent(0))), sums(out) {
    fill(ctx, top, -std::numeric_limits<T>::infinity());
    fill(ctx, total, 0);
    fill(ctx, sums, 0);
  }
};
/// @order keys in ascending order; with a causal mask, an item's numbers do not depend on later items in any bit
template <class C, class T, class B>
void add_head(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale, const Mask<T, B>& mask,
              View<const T, 2, B> values, const Sums<T, B>& to) {
  for_each_block(ctx, queries.extent(0), mask.length, mask.causal, [&](C& own, const Block& block) {
    auto mark = own.mark();
    const Products<T, B> products(own, block);
    const View<T, 2, B> w = products.scores(own, queries, keys);
    B::for_rows(own, block.all_rows(), fn::MixBlock<T, B>{mask, block, T(scale), w, to.top, to.total, to.sums});
    products.add(own, w, values, to.sums);
  });
}
/// The adjoint of one head, given that of the weighted sums: adds to dvalues, dqueries, dkeys.
/// @param mean  [N] what the softmax takes off ⟨dsums_i, values_j⟩
template <class C, class T, class B>
void add_head_backward(C& ctx, View<const T, 2, B> queries, View<const T, 2, B> keys, double scale,
                       const Mask<T, B>& mask, View<const T, 2, B> values, View<const T, 1, B> log_sum_exp,
                       View<const T, 1, B> mean, View<const T, 2, B> dsums, View<T, 2, B> dvalues,
                       View<T, 2, B> dqueries, View<T, 2, B> dkeys) {
  for_each_block(ctx, queries.extent(0), mask.length, mask.causal, [&](C& own, const Block& block) {
    auto mark = own.mark();
    const Products<T, B> products(own, block);
    const View<T, 2, B> d = products.scores(own, queries, keys), w = products.scores(own, dsums, values);
    B::for_rows(own, block.all_rows(),
                fn::MixBlockBackward<T, B>{mask, block, T(scale), log_sum_exp, mean, d, w});
    products.add_transposed(own, w, dsums, dvalues);
    products.add(own, d, keys, dqueries);
    products.add_transposed(own, d, queries, dkeys);
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

/// Equations (1) and (2), scale > 0. Writes q, log_q [N, E] and log_sum_exp [N] (−∞ for an item that sees nobody).
/// @cost  2·H·N·L·F flop for the scores (half if causal), 2·H·N·L·E more; scratch of one block and N·E
/// @order keys in ascending order; with `causal`, an item's numbers do not depend on later items in any bit
template <class C, class T, class B>
void forward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
             View<const T, 2, B> r, View<const T, 2, B> log_r, View<T, 2, B> q, View<T, 2, B> log_q,
             View<T, 1, B> log_sum_exp) {
  auto mark = ctx.mark();
  const T tiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  const Keys<T, B> keys(ctx, visible.valid, r);
  const Sums<T, B> sums(ctx, q);
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    add_head<C, T, B>(ctx, head(heads.queries, h), head(heads.keys, h), scale,
                      {visible.length, visible.causal, keys.mask, visible.valid, visible.entropy}, keys.values, sums);
  B::for_rows(ctx, q.extent(0), fn::MixFinish<T, B>{visible, heads, T(scale), tiny, r, log_r, sums.top, sums.total, q,
                                                   log_q, log_sum_exp});
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
  B::for_rows(ctx, q.extent(0),
              fn::MixAdjoint<T, B>{q, dq, drank, log_sum_exp, std::numeric_limits<T>::min(), g, dr, mean});
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    add_head_backward<C, T, B>(ctx, head(heads.queries, h), head(heads.keys, h), scale,
                               {visible.length, visible.causal, keys.mask, visible.valid, visible.entropy}, keys.values,
                               log_sum_exp, mean, g, dr, head(dheads.queries, h), head(dheads.keys, h));
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
