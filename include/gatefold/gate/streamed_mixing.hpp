#pragma once

#include <cmath>
#include <limits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Items that share their probabilities, without an N × N matrix: what the mixings of paper 002 have in common.
///
///     w[i,h,j] = softmax over the heads h and the items j that i sees of
///                scale · (⟨queries[h,i], keys[h,j]⟩ + row_bias[h,i] + key_bias[h,j])                      (1)
///     q[i,e] = Σ_hj w[i,h,j] r[j,e],   rank[i,e] = log q[i,e]                                            (2)
///
/// Scores are formed block by block with the backend's product and used at once; forward keeps one log-sum-exp per item,
/// backward forms the scores again. An item that sees nobody keeps its own r.
namespace gatefold {

/// Who sees whom: items of the same sequence, padding nobody and nobody it, with `causal` no later item, and with `entropy` only items at
/// least as sure of themselves (and oneself).
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

/// Where the scores of (1) come from; a bias may be empty. T is const for the input, mutable for its adjoint.
template <class T, class B>
struct MixingHeads {
  View<T, 3, B> queries, keys;          // [H, N, F]
  View<T, 2, B> row_bias{}, key_bias{};  // [H, N]
};

namespace fn {

/// Softmax weights of one block of keys, added to what the row has of (2); rescaled when a larger score comes.
template <class T, class B>
struct MixBlock {
  Visible<T, B> visible;
  MixingHeads<const T, B> heads;
  T scale;
  Index h, first_row, first_key;
  View<const T, 2, B> r;
  View<T, 2, B> score;       // [rows, keys] of the block
  View<T, 1, B> top, total;  // [rows]
  View<T, 2, B> q;           // [N, E]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = first_row + row, keys = score.extent(1), experts = q.extent(1);
    const T row_bias = heads.row_bias.data() ? heads.row_bias(h, i) : T(0);
    T best = top(row), seen = 0;
    for (Index j = lanes.lane; j < keys; j += lanes.size) {
      if (!visible.sees(i, first_key + j)) continue;
      const T bias = heads.key_bias.data() ? heads.key_bias(h, first_key + j) + row_bias : row_bias;
      const T v = score(row, j) = scale * (score(row, j) + bias);
      best = v > best ? v : best;
      seen += v == -T(INFINITY) ? T(0) : T(1);
    }
    if (lanes.sum(seen) == 0) return;
    best = lanes.max(best);
    const T keep = best == top(row) ? T(1) : std::exp(top(row) - best);
    T more = 0;
    for (Index j = lanes.lane; j < keys; j += lanes.size)
      more += score(row, j) = visible.sees(i, first_key + j) ? std::exp(score(row, j) - best) : T(0);
    more = lanes.sum(more);
    for (Index e = lanes.lane; e < experts; e += lanes.size) q(i, e) *= keep;
    for (Index j = 0; j < keys; ++j) {
      const T w = score(row, j);
      if (w == 0) continue;  // also keeps NaN of items not seen away
      for (Index e = lanes.lane; e < experts; e += lanes.size) q(i, e) += w * r(first_key + j, e);
    }
    if (lanes.lane == 0) {
      top(row) = best;
      total(row) = total(row) * keep + more;
    }
  }
};

/// Normalise (2). Where q is too small for its logarithm to be exact, log q is summed from log w + log r instead.
template <class T, class B>
struct MixFinish {
  Visible<T, B> visible;
  MixingHeads<const T, B> heads;
  T scale, tiny;
  Index first_row;
  View<const T, 2, B> r, log_r;
  View<const T, 1, B> top, total;  // [rows]
  View<T, 2, B> q, log_q;          // [N, E]
  View<T, 1, B> log_sum_exp;       // [N]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = first_row + row, experts = q.extent(1);
    if (total(row) == 0) {
      for (Index e = lanes.lane; e < experts; e += lanes.size) q(i, e) = r(i, e), log_q(i, e) = log_r(i, e);
      if (lanes.lane == 0) log_sum_exp(i) = -T(INFINITY);
      return;
    }
    const T normaliser = top(row) + std::log(total(row));
    if (lanes.lane == 0) log_sum_exp(i) = normaliser;
    T small = 0;
    for (Index e = lanes.lane; e < experts; e += lanes.size) {
      q(i, e) /= total(row);
      small += q(i, e) < tiny ? T(1) : T(0);
      log_q(i, e) = q(i, e) < tiny ? -T(INFINITY) : std::log(q(i, e));
    }
    if (lanes.sum(small) == 0) return;
    const Index first = i / visible.length * visible.length, dim = heads.queries.extent(2);
    for (Index h = 0; h < heads.queries.extent(0); ++h) {
      const T row_bias = heads.row_bias.data() ? heads.row_bias(h, i) : T(0);
      for (Index j = first; j < first + visible.length; ++j) {
        if (!visible.sees(i, j)) continue;
        T dot = 0;
        for (Index d = lanes.lane; d < dim; d += lanes.size) dot += heads.queries(h, i, d) * heads.keys(h, j, d);
        const T bias = heads.key_bias.data() ? heads.key_bias(h, j) + row_bias : row_bias;
        const T log_w = scale * (lanes.sum(dot) + bias) - normaliser;
        for (Index e = lanes.lane; e < experts; e += lanes.size)
          if (q(i, e) < tiny) log_q(i, e) = log_add(log_q(i, e), log_w + log_r(j, e));
      }
    }
  }

  /// log(exp a + exp b)
  GATEFOLD_HD static T log_add(T a, T b) {
    if (a == -T(INFINITY)) return b;
    if (b == -T(INFINITY)) return a;
    return a > b ? a + std::log1p(std::exp(b - a)) : b + std::log1p(std::exp(a - b));
  }
};

/// g = dq + drank / q, which is the adjoint of (2) all told; Σ_e g q, which the softmax takes off.
template <class T, class B>
struct MixAdjoint {
  View<const T, 2, B> q, dq, drank;
  T smallest;  // normal number: below, the quotient may overflow
  View<T, 2, B> g;
  View<T, 1, B> mean;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index i) const {
    T total = 0;
    for (Index e = lanes.lane; e < q.extent(1); e += lanes.size) {
      g(i, e) = dq(i, e) + (q(i, e) >= smallest ? drank(i, e) / q(i, e) : T(0));
      total += g(i, e) * q(i, e);
    }
    total = lanes.sum(total);
    if (lanes.lane == 0) mean(i) = total;
  }
};
/// An item that saw nobody kept its own r: dr = g.
template <class T, class B>
struct MixOwnAdjoint {
  View<const T, 1, B> log_sum_exp;
  View<const T, 2, B> g;
  View<T, 2, B> dr;
  GATEFOLD_HD void operator()(Index k) const {
    dr.data()[k] = log_sum_exp(k / g.extent(1)) == -T(INFINITY) ? g.data()[k] : T(0);
  }
};
/// score → scale · w (⟨g_i, r_j⟩ − mean_i), slope = ⟨g_i, r_j⟩ → w
template <class T, class B>
struct MixBlockBackward {
  Visible<T, B> visible;
  MixingHeads<const T, B> heads;
  T scale;
  Index h, first_row, first_key;
  View<const T, 1, B> log_sum_exp, mean;  // [N]
  View<T, 2, B> score, slope;             // [rows, keys]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index row) const {
    const Index i = first_row + row;
    const T row_bias = heads.row_bias.data() ? heads.row_bias(h, i) : T(0);
    for (Index j = lanes.lane; j < score.extent(1); j += lanes.size) {
      T w = 0, d = 0;
      if (visible.sees(i, first_key + j)) {
        const T bias = heads.key_bias.data() ? heads.key_bias(h, first_key + j) + row_bias : row_bias;
        w = std::exp(scale * (score(row, j) + bias) - log_sum_exp(i));
        if (w != 0) d = scale * w * (slope(row, j) - mean(i));
      }
      score(row, j) = d;
      slope(row, j) = w;
    }
  }
};
/// sums[row] += Σ_column d[row, column]
template <class T, class B>
struct AddRowSums {
  View<const T, 2, B> d;
  T* sums;
  GATEFOLD_HD void operator()(Index row) const {
    T total = 0;
    for (Index j = 0; j < d.extent(1); ++j) total += d(row, j);
    sums[row] += total;
  }
};
/// sums[column] += Σ_row d[row, column]
template <class T, class B>
struct AddColumnSums {
  View<const T, 2, B> d;
  T* sums;
  GATEFOLD_HD void operator()(Index column) const {
    T total = 0;
    for (Index i = 0; i < d.extent(0); ++i) total += d(i, column);
    sums[column] += total;
  }
};

/// H(p_n) = −Σ_e p log p in nats, with 0 log 0 = 0
template <class T, class B>
struct RowEntropy {
  View<const T, 2, B> p, log_p;
  View<T, 1, B> entropy;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    T total = 0;
    for (Index e = lanes.lane; e < p.extent(1); e += lanes.size)
      if (p(n, e) != 0) total -= p(n, e) * log_p(n, e);
    total = lanes.sum(total);
    if (lanes.lane == 0) entropy(n) = total;
  }
};

}  // namespace fn

namespace mixing {

inline constexpr Index rows_per_block = 128, keys_per_block = 512;

/// Call f(first row, rows) for blocks of queries that cover every sequence.
template <class F>
void for_each_row_block(Index items, Index length, F&& f) {
  for (Index begin = 0; begin < items; begin += length)
    for (Index row = begin; row < begin + length; row += rows_per_block)
      f(row, row + rows_per_block < begin + length ? rows_per_block : begin + length - row);
}
/// Call f(first key, keys) for the blocks of keys that some row of a block may see, in ascending order.
template <class F>
void for_each_key_block(Index first_row, Index rows, Index length, bool causal, F&& f) {
  const Index begin = first_row / length * length, end = causal ? first_row + rows : begin + length;
  for (Index key = begin; key < end; key += keys_per_block) f(key, key + keys_per_block < end ? keys_per_block : end - key);
}

template <class T, class B>
View<T, 2, B> head(View<T, 3, B> of_heads, Index h) {
  const Index rows = of_heads.extent(1), columns = of_heads.extent(2);
  return {of_heads.data() + h * rows * columns, rows, columns};
}
/// ⟨queries[h,i], keys[h,j]⟩ of a block
template <class C, class T, class B>
View<T, 2, B> scores(C& ctx, const MixingHeads<const T, B>& heads, Index h, Index row, Index rows, Index key, Index keys) {
  auto block = ctx.template scratch<T>(rows, keys);
  B::gemm(ctx, head(heads.queries, h).rows(row, rows), false, head(heads.keys, h).rows(key, keys), true, false, block,
          fn::Store{});
  return block;
}

/// Equations (1) and (2). Writes q, log_q [N, E] and log_sum_exp [N] (−∞ for an item that sees nobody).
/// @cost  2·H·N·L·F flop for the scores (half if causal), N·L·(H + E) more; scratch of one block
/// @order keys in ascending order; with `causal`, an item's numbers do not depend on later items in any bit
template <class C, class T, class B>
void forward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
             View<const T, 2, B> r, View<const T, 2, B> log_r, View<T, 2, B> q, View<T, 2, B> log_q,
             View<T, 1, B> log_sum_exp) {
  const T tiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  fill(ctx, q, 0);
  for_each_row_block(q.extent(0), visible.length, [&](Index row, Index rows) {
    auto mark = ctx.mark();
    auto top = ctx.template scratch<T>(rows), total = ctx.template scratch<T>(rows);
    fill(ctx, top, -std::numeric_limits<T>::infinity());
    fill(ctx, total, 0);
    for (Index h = 0; h < heads.queries.extent(0); ++h)
      for_each_key_block(row, rows, visible.length, visible.causal, [&](Index key, Index keys) {
        auto block = ctx.mark();
        auto score = scores(ctx, heads, h, row, rows, key, keys);
        B::for_rows(ctx, rows, fn::MixBlock<T, B>{visible, heads, T(scale), h, row, key, r, score, top, total, q});
      });
    B::for_rows(ctx, rows, fn::MixFinish<T, B>{visible, heads, T(scale), tiny, row, r, log_r, top, total, q, log_q,
                                              log_sum_exp});
  });
}

/// The adjoint: writes dr [N, E], adds to the members of dheads, of which a bias may be empty.
/// Experts whose q underflows pass no gradient from their rank. An item that holds NaN has NaN gradients, and so have the items
/// that share a block of keys with it, causal or not; padding is left out (its x must be finite: ComposedGate sees to it).
/// @cost  6·H·N·L·F flop (half if causal), N·L·(H + 4·E) more; scratch of two blocks and N·E
template <class C, class T, class B>
void backward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
              View<const T, 2, B> r, View<const T, 2, B> q, View<const T, 1, B> log_sum_exp, View<const T, 2, B> drank,
              View<const T, 2, B> dq, View<T, 2, B> dr, const MixingHeads<T, B>& dheads) {
  auto mark = ctx.mark();
  auto g = ctx.template scratch<T>(q.extent(0), q.extent(1));
  auto mean = ctx.template scratch<T>(q.extent(0));
  B::for_rows(ctx, q.extent(0), fn::MixAdjoint<T, B>{q, dq, drank, std::numeric_limits<T>::min(), g, mean});
  B::for_each(ctx, dr.size(), fn::MixOwnAdjoint<T, B>{log_sum_exp, g, dr});
  const View<const T, 2, B> adjoint = g;
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    for_each_row_block(q.extent(0), visible.length, [&](Index row, Index rows) {
      for_each_key_block(row, rows, visible.length, visible.causal, [&](Index key, Index keys) {
        auto block = ctx.mark();
        auto score = scores(ctx, heads, h, row, rows, key, keys);
        auto slope = ctx.template scratch<T>(rows, keys);
        B::gemm(ctx, adjoint.rows(row, rows), false, r.rows(key, keys), true, false, slope, fn::Store{});
        B::for_rows(ctx, rows, fn::MixBlockBackward<T, B>{visible, heads, T(scale), h, row, key, log_sum_exp, mean,
                                                         score, slope});
        const View<const T, 2, B> w = slope, d = score;
        B::gemm(ctx, w, true, adjoint.rows(row, rows), false, true, dr.rows(key, keys), fn::Store{});
        B::gemm(ctx, d, false, head(heads.keys, h).rows(key, keys), false, true, head(dheads.queries, h).rows(row, rows),
                fn::Store{});
        B::gemm(ctx, d, true, head(heads.queries, h).rows(row, rows), false, true, head(dheads.keys, h).rows(key, keys),
                fn::Store{});
        if (dheads.row_bias.data()) B::for_each(ctx, rows, fn::AddRowSums<T, B>{d, &dheads.row_bias(h, row)});
        if (dheads.key_bias.data()) B::for_each(ctx, keys, fn::AddColumnSums<T, B>{d, &dheads.key_bias(h, key)});
      });
    });
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
