#pragma once

#include <cmath>
#include <limits>

#include "gatefold/attention/streamed_softmax.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"

/// Code for the mixings TokenSimilarity and AttentionPosterior of paper 002. They replace the probabilities r of an
/// item by a weighted mean q of the probabilities of several items. The N × N matrix of the weights w is never stored.
///
///     w[i,h,j] = softmax over the heads h and the items j that i sees of scale · ⟨queries[h,i], keys[h,j]⟩   (1)
///     q[i,e] = Σ_hj w[i,h,j] r[j,e],   rank[i,e] = log q[i,e]                                            (2)
///
/// (1) and (2) are attention with the values r (attention/streamed_softmax.hpp). Visible defines the items that an item
/// sees. forward saves one log-sum-exp per item. An item that sees no item keeps its own r. If each item follows one
/// head, the softmax in (1) runs only over the keys of that head.
namespace gatefold {

/// Defines which items j an item i sees, that is, whose probabilities it takes over in (1) and (2). Item i sees items
/// of its sequence that are not padding. Padding sees no item. With `causal`, item i sees no later item. If
/// `entropy` is not empty, item i sees only itself and items j with entropy[j] ≤ entropy[i].
template <class T, class B>
struct Visible {
  Index length = 0;
  bool causal = true;
  View<const T, 1, B> valid{};          // [N] mask: 1 = item, 0 = padding; empty: no padding
  View<const T, 1, B> entropy{};        // [N] entropy of each item's probabilities r; empty: not compared
  detail_::attending::Window window{};  // if its width > 0, i sees only items in this window; `causal` must be true

  GATEFOLD_HD bool sees(Index i, Index j) const {
    return (window.width > 0 ? window.sees(i % length, j % length) : !causal || j <= i) &&
           (!valid.data() || (valid(i) != 0 && valid(j) != 0)) &&
           (!entropy.data() || j == i || entropy(j) <= entropy(i));
  }
};

/// Query and key vectors of the mixing weights (1), or their gradients. T is const for the vectors, and mutable for the
/// gradients.
template <class T, class B>
struct MixingHeads {
  // Views [H, N, F]: the vectors of H heads, with F values each. If every item uses the vectors of only one head (see
  // Following), queries are [1, N, F] and keys [1, heads · N, F].
  View<T, 3, B> queries, keys;
  detail_::attending::Following<B> following{};
  View<T, 2, B> places{};  // [width, F] position keys (one per place in the window); gradient: [sequences · width, F]
};

namespace functor {

/// Divides the weighted sums in (2) by the sum of the weights. The results are the mixed probabilities q and log q. If
/// q < `tiny`, q has too few digits for an exact logarithm. Then log q is computed as log Σ exp(log w + log r), with
/// weights w and probabilities r before mixing.
template <class T, class B>
struct MixFinish {
  Visible<T, B> visible;
  MixingHeads<const T, B> heads;
  T scale, tiny;
  View<const T, 2, B> r, log_r;
  View<const T, 1, B> top, total;  // [N] by row: the largest score m, and the sum Σ_j exp(scale · (score_j − m))
  View<const T, 2, B> sums;        // [N, E] weighted sums; in the memory of q unless rows are ordered by head
  View<T, 2, B> q, log_q;          // [N, E]
  View<T, 1, B> log_sum_exp;       // [N]

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
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
    T vanishing = 0;
    for (Index e = lanes.lane; e < experts; e += lanes.size) {
      q(i, e) = sums(row, e) / total(row);
      vanishing += q(i, e) < tiny ? T(1) : T(0);
      log_q(i, e) = q(i, e) < tiny ? -T(INFINITY) : std::log(q(i, e));
    }
    if (lanes.sum(vanishing) == 0) return;
    const Index first = i / visible.length * visible.length, dim = heads.queries.extent(2);
    const Index begin = visible.window.first(i - first);
    for (Index h = 0; h < heads.queries.extent(0); ++h)
      for (Index j = first; j < first + visible.length; ++j) {
        if (!visible.sees(i, j)) continue;
        const Index key = heads.following.key_for(i, j);
        const T* const place = heads.places.data() ? &heads.places(j - first - begin, 0) : nullptr;
        const T dot = sum_columns<T>(lanes, dim, [&](auto at, Index d) {
          const auto of_key = at.load(&heads.keys(h, key, d));
          return at.load(&heads.queries(h, row, d)) * (place ? of_key + at.load(place + d) : of_key);
        });
        // log w of a mixing weight w is at most 0, but for huge scores rounding can give more.
        const T found = scale * dot - normaliser, log_w = found > 0 ? T(0) : found;
        for (Index e = lanes.lane; e < experts; e += lanes.size)
          if (q(i, e) < tiny) log_q(i, e) = log_add(log_q(i, e), log_w + log_r(j, e));
      }
  }

  GATEFOLD_HD static T log_add(T a, T b) {
    if (a == -T(INFINITY)) return b;
    if (b == -T(INFINITY)) return a;
    return a > b ? a + std::log1p(std::exp(b - a)) : b + std::log1p(std::exp(a - b));
  }
};

/// Computes g = dq + drank / q, the total gradient of the mixed probabilities q (rank = log q). Also computes mean =
/// Σ_e g q, which the gradient of the softmax subtracts. Initialises dr, the gradient of the probabilities r before
/// mixing, with 0. If an item sees no item, its q is its own r, so dr is initialised with g instead.
template <class T, class B>
struct MixAdjoint {
  View<const T, 2, B> q, dq, drank;
  View<const T, 1, B> log_sum_exp;
  T smallest;  // smallest normal number; for a smaller q, drank / q could overflow
  detail_::attending::Following<B> following;
  View<T, 2, B> dr;
  View<T, 2, B> g;     // [N, E]; its rows are the items, in their order or sorted by head
  View<T, 1, B> mean;  // [N] of each row

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
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

/// Writes the entropy −Σ_e p log p of the probabilities p of item n in nats, with 0 log 0 = 0. If p is NaN, the entropy
/// is ∞. Items with a finite entropy then do not take over probabilities of item n, because an item does not see items
/// with a larger entropy (Visible).
template <class T, class B>
struct RowEntropy {
  View<const T, 2, B> p, log_p;
  View<T, 1, B> entropy;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T total = sum_columns<T>(lanes, p.extent(1), [&](auto at, Index e) {
      using functor::math::where_positive;
      const auto v = at.load(&p(n, e));
      return where_positive(v, v * at.load(&log_p(n, e)), v);
    });
    if (lanes.lane == 0) entropy(n) = total <= 0 ? -total : T(INFINITY);
  }
};

}  // namespace functor

namespace detail_::mixing {

template <class T, class B>
View<T, 2, B> head(View<T, 3, B> of_heads, Index h) {
  const Index rows = of_heads.extent(1), columns = of_heads.extent(2);
  return {of_heads.data() + h * rows * columns, rows, columns};
}
/// Returns the view [H, N, F] as [H · N, F].
template <class T, class B>
View<T, 2, B> stacked(View<T, 3, B> of_heads) {
  return {of_heads.data(), of_heads.extent(0) * of_heads.extent(1), of_heads.extent(2)};
}

template <class T, class B>
detail_::attending::Mask<T, B> mask_of(const Visible<T, B>& visible, const detail_::attending::Keys<T, B>& keys,
                                       const detail_::attending::Following<B>& following) {
  return {visible.length, visible.causal, keys.mask, visible.valid, visible.entropy, following, {}, visible.window};
}

/// Computes the mixed probabilities q by (1) and (2), for scale > 0. Writes q and log_q [N, E], and log_sum_exp [N],
/// which is the log-sum-exp of the scores of each item (−∞ for an item that sees no item).
/// @cost  2·H·N·L·F flop for the scores and 2·H·N·L·E flop for the weighted sums (2), or half as much if causal and L
///        is much larger than a block; H = 1 if each item follows one head; scratch memory for one block and N·E values
/// @order sums run over j in ascending order; with `causal`, no bit of an item depends on later items
template <class C, class T, class B>
void forward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
             View<const T, 2, B> r, View<const T, 2, B> log_r, View<T, 2, B> q, View<T, 2, B> log_q,
             View<T, 1, B> log_sum_exp) {
  auto mark = ctx.mark();
  const T tiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  const detail_::attending::Keys<T, B> keys(ctx, visible.valid, r);
  const detail_::attending::Sums<T, B> sums(
      ctx, heads.following.heads > 1 ? ctx.template scratch<T>(q.extent(0), q.extent(1)) : q);
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    detail_::attending::add_keys<C, T, B>(ctx, head(heads.queries, h), head(heads.keys, h), scale,
                                          mask_of(visible, keys, heads.following), keys.values, sums, {heads.places});
  B::for_rows(ctx, q.extent(0),
              functor::MixFinish<T, B>{visible, heads, T(scale), tiny, r, log_r, sums.top, sums.total, sums.sums, q,
                                       log_q, log_sum_exp});
}

/// Computes the gradients of the mixing that `forward` computed. Writes dr [N, E], the gradient of the probabilities r
/// before mixing, and adds the gradients of the query and key vectors to the members of dheads.
///
/// If q of an expert underflows, the rank of this expert passes no gradient. An item with NaN causes NaN gradients of
/// itself and of all items in the same block of keys, also of earlier items if the mixing is causal. Padding is left
/// out; its x must be finite, which ComposedGate ensures.
/// @cost  6·H·N·L·F flop for the scores and their gradients, and 4·H·N·L·E flop for the products with values, or half
///        as much if causal and L is much larger than a block; H = 1 if each item follows one head; scratch memory for
///        two blocks and N·E values
template <class C, class T, class B>
void backward(C& ctx, const MixingHeads<const T, B>& heads, double scale, const Visible<T, B>& visible,
              View<const T, 2, B> r, View<const T, 2, B> q, View<const T, 1, B> log_sum_exp, View<const T, 2, B> drank,
              View<const T, 2, B> dq, View<T, 2, B> dr, const MixingHeads<T, B>& dheads) {
  auto mark = ctx.mark();
  const detail_::attending::Keys<T, B> keys(ctx, visible.valid, r);
  auto g = ctx.template scratch<T>(q.extent(0), q.extent(1));
  auto mean = ctx.template scratch<T>(q.extent(0));
  B::for_rows(ctx, q.extent(0),
              functor::MixAdjoint<T, B>{q, dq, drank, log_sum_exp, std::numeric_limits<T>::min(), heads.following, dr,
                                        g, mean});
  for (Index h = 0; h < heads.queries.extent(0); ++h)
    detail_::attending::add_keys_backward<C, T, B>(
        ctx, head(heads.queries, h), head(heads.keys, h), scale, mask_of(visible, keys, heads.following), keys.values,
        log_sum_exp, mean, g, dr, head(dheads.queries, h), head(dheads.keys, h), {heads.places, dheads.places});
}

/// Returns the entropy of the probabilities r of each item, as [N] in scratch memory. The option `only_confident` of
/// the mixings compares these entropies.
template <class C, class T, class B>
View<T, 1, B> entropies(C& ctx, View<const T, 2, B> r, View<const T, 2, B> log_r) {
  auto entropy = ctx.template scratch<T>(r.extent(0));
  B::for_rows(ctx, r.extent(0), functor::RowEntropy<T, B>{r, log_r, entropy});
  return entropy;
}

}  // namespace detail_::mixing
}  // namespace gatefold
