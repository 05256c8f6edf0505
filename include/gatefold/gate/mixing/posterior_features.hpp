#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/attention/mask.hpp"
#include "gatefold/attention/products.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/gate/mixing/streamed_mixing.hpp"

/// Functors for the mixing AttentionPosterior. One functor chooses the attention head that each item follows. The item
/// uses the attention weights of this head. Other functors write a query and a key vector for each item, and compute
/// the gradients of these vectors. The scalar product of a query and a key is the logarithm of a posterior weight that
/// is not normalised yet.
namespace gatefold {

/// Selects the attention heads whose weights the mixing AttentionPosterior uses.
enum class FollowedHead {
  // The head with the lowest mean entropy. The mean is over the sequence or, with causal attention, over the items of
  // the sequence up to the current item.
  lowest_entropy,
  lowest_entropy_of_sequence,  // the head with the lowest mean entropy in the whole sequence: Graph of Tokens
  every                        // all heads, weighted by HP of equation (3) of AttentionPosterior
};

namespace functor {

/// Adds one block of keys j to the entropy −Σ_j A log A of the attention weights A of an item, with log A = scale ·
/// score − log_sum_exp.
template <class T, class B>
struct AttentionEntropy {
  detail_::attending::Mask<T, B> mask;
  detail_::attending::Block block;
  detail_::attending::HeadRows rows;
  View<const T, 2, B> log_sum_exp;  // [N, heads]
  T scale;
  View<const T, 2, B> score;
  View<T, 2, B> entropy;  // [N, heads]

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index i = block.row + row, key = block.first_key(row), n = rows.item(i), h = rows.head(i);
    const T normaliser = log_sum_exp(n, h);
    const T total = sum_columns<T>(lanes, mask.count(block, row), [&](auto at, Index j) {
      using functor::math::exp;
      using functor::math::where_positive;
      const auto log_a = mask.seen(at, i, key + j, at.load(&score(row, j))) * scale - normaliser, a = exp(log_a);
      const decltype(exp(log_a)) zero(T(0));
      // A weight A of 1 adds exactly 0. The entropy of an item with only one key therefore has no rounding error.
      return where_positive(a, where_positive(T(1) - a, a * log_a, zero), zero);
    });
    if (lanes.lane == 0) entropy(n, h) -= total;
  }
};
/// Writes to head[i] the attention head with the lowest mean entropy. The mean runs over the items of the sequence of
/// item i, or only over its items up to i if `so_far` is true. Ties go to the lower head. Padding does not count.
template <class T, class B>
struct ChooseHead {
  View<const T, 2, B> entropy;
  View<const T, 1, B> valid;
  Index length;
  bool so_far;
  View<T, 2, B> total;  // [sequences, heads]
  View<Index, 1, B> head;
  GATEFOLD_HD void operator()(Index g) const {
    const Index heads = entropy.extent(1), end = (g + 1) * length;
    for (Index h = 0; h < heads; ++h) total(g, h) = 0;
    for (Index i = g * length; i < end; ++i) {
      if (!valid.data() || valid(i) != 0)
        for (Index h = 0; h < heads; ++h) total(g, h) += entropy(i, h);
      if (so_far || i + 1 == end) head(i) = lowest(g);
    }
    if (!so_far)
      for (Index i = g * length; i + 1 < end; ++i) head(i) = head(end - 1);
  }

 private:
  GATEFOLD_HD Index lowest(Index g) const {
    Index best = 0;
    for (Index h = 1; h < total.extent(1); ++h)
      if (total(g, h) < total(g, best)) best = h;
    return best;
  }
};

}  // namespace functor

namespace detail_::mixing {

/// Returns whether items of the same sequence can follow different attention heads.
template <class T, class B>
bool several_heads(FollowedHead head, const AttentionTrace<T, B>& a) {
  return head == FollowedHead::lowest_entropy && a.causal;
}
/// Returns the entropy −Σ_j A log A of the attention weights A of each item and head, as [N, heads] in scratch memory.
template <class T, class B>
View<T, 2, B> attention_entropies(auto& ctx, const AttentionTrace<const T, B>& a) {
  const Index items = a.q.extent(0), heads = a.heads();
  auto entropy = ctx.template scratch<T>(items, heads);
  fill(ctx, entropy, 0);
  const detail_::attending::HeadRows rows{heads, a.length};
  const View<const T, 2, B> q = detail_::attending::split_heads(ctx, rows, a.q),
                            k = detail_::attending::split_heads(ctx, rows, a.k);
  const detail_::attending::Keys<T, B> keys(ctx, a.valid, k, rows);
  const detail_::attending::Mask<T, B> mask{a.length, a.causal, keys.mask};
  detail_::attending::for_each_block(
      ctx, heads * items, a.length, a.causal, {}, [&](auto& own, const detail_::attending::Block& block) {
        auto of_block = own.mark();
        const View<const T, 2, B> score = detail_::attending::Products<T, B>(own, block).scores(own, q, k);
        B::for_rows(own, block.all_rows(),
                    functor::AttentionEntropy<T, B>{mask, block, rows, a.log_sum_exp, T(a.scale), score, entropy});
      });
  return entropy;
}
/// Writes the attention head that each item follows to `followed`, or 0 if all heads are used (FollowedHead::every).
template <class T, class B>
void follow_head(auto& ctx, FollowedHead head, const AttentionTrace<const T, B>& a, View<const T, 1, B> valid,
                 View<Index, 1, B> followed) {
  if (head == FollowedHead::every) return fill(ctx, followed, 0);
  auto mark = ctx.mark();
  const Index sequences = followed.size() / a.length;
  auto total = ctx.template scratch<T>(sequences, a.heads());
  const View<const T, 2, B> entropy = a.entropy.data() ? a.entropy : attention_entropies<T, B>(ctx, a);
  B::for_each(ctx, sequences,
              functor::ChooseHead<T, B>{entropy, valid, a.length, several_heads(head, a), total, followed});
}

}  // namespace detail_::mixing

namespace functor {

/// Query and key vectors (features) of item n and attention head h for AttentionPosterior. The scalar product of the
/// query of item i and the key of item j is the log of the posterior weight, up to the normaliser:
///
///     query  [scale · q_h, α u O_hᵀ / σ², 1, −log_sum_exp_h],   key  [k_h, v_h, −‖m_h‖² / 2σ², 1]          (1)
///
/// Here u is the item, q_h, k_h, v_h are its vectors in the attention, and O_h is the output projection. m_h = α v_h
/// O_h, with α = 1, or H with mean_of_heads. Because ⟨u, m_h⟩ = α ⟨u O_hᵀ, v_h⟩, the second part of query and key has
/// D/H values, not D. The last element of query and key exists only for `every`. An item that follows one head has only
/// the query of that head. If the whole sequence follows this head, the item also has only the key of this head;
/// otherwise it has the keys of all heads. If the attention has position keys (AttentionTrace::places), they are added
/// to the keys as [places_o, 0, …], so they change only the first part of a key.
template <class T, class B>
struct PosteriorFeatures {
  Index width;  // D / H
  bool every;
  View<const Index, 1, B> head;  // [N] the attention head that each item follows
  MixingHeads<T, B> of;

  GATEFOLD_HD static Index columns(Index width, bool every) { return 2 * width + (every ? 2 : 1); }
  /// Returns whether item n has a query vector for attention head h. has_key returns whether it has a key vector.
  GATEFOLD_HD bool has_query(Index n, Index h) const { return every || head(n) == h; }
  GATEFOLD_HD bool has_key(Index n, Index h) const { return has_query(n, h) || of.following.heads > 1; }
  GATEFOLD_HD T* query(Index n, Index h) const { return &of.queries(every ? h : 0, of.following.row(n), 0); }
  GATEFOLD_HD T* key(Index n, Index h) const { return &of.keys(every ? h : 0, of.following.key(n, h), 0); }
};
/// Writes norm[h,n] = ‖v_h O_h‖² = ⟨v_h O_h O_hᵀ, v_h⟩, with v_h the values of item n in attention head h and O_h the
/// output projection of the head.
template <class T, class B>
struct HeadNorms {
  View<const T, 2, B> v;       // [N, D]
  View<const T, 3, B> square;  // [H, N, D/H] v_h O_h O_hᵀ
  View<T, 2, B> norm;          // [H, N]

  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index items = square.extent(1), n = i % items, h = i / items, width = square.extent(2);
    const T total = sum_columns<T>(
        lanes, width, [&](auto at, Index c) { return at.load(&v(n, h * width + c)) * at.load(&square(h, n, c)); });
    if (lanes.lane == 0) norm(h, n) = total;
  }
};
/// Holds the projection u O_hᵀ of each item u for the attention heads h that the item follows. O_h is the output
/// projection of head h.
template <class T, class B>
struct Projection {
  Index width;
  View<T, 2, B> values;             // [N, D] for all heads, or [N, D/H] for one head per item, sorted by head
  View<const Index, 1, B> slots{};  // [N] row of each item in the order by head; empty if all heads are used

  GATEFOLD_HD T* of(Index n, Index h) const { return slots.data() ? &values(slots(n), 0) : &values(n, h * width); }
};
/// An epilogue of a matrix product. The product calls it for each element v in row s and column j. It adds v to
/// dx[items[s], j], the gradient of the item of row s, and returns v unchanged for the product to store.
template <class T, class B>
struct AddToItem {
  View<const Index, 1, B> items;
  View<T, 2, B> dx;

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value v) const {
    T* const to = &dx(items(s), j);
    at.store(to, at.load(to) + v);
    return v;
  }
};
/// Writes the query and key vectors (1) of PosteriorFeatures.
template <class T, class B>
struct WritePosteriorFeatures {
  AttentionTrace<const T, B> a;
  PosteriorFeatures<T, B> f;
  Projection<T, B> projected;
  View<const T, 2, B> norm;  // [H, N] ‖v_h O_h‖²
  T precision, alpha;

  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index items = norm.extent(1), n = i % items, h = i / items, width = f.width, first = h * width;
    if (!f.has_key(n, h)) return;
    const bool asks = f.has_query(n, h);
    T *const query = asks ? f.query(n, h) : nullptr, *const key = f.key(n, h);
    const T* const u = asks ? projected.of(n, h) : nullptr;
    each_column<T>(lanes, width, [&](auto at, Index c) {
      at.store(key + c, at.load(&a.k(n, first + c)));
      at.store(key + width + c, at.load(&a.v(n, first + c)));
      if (!asks) return;
      at.store(query + c, at.load(&a.q(n, first + c)) * T(a.scale));
      at.store(query + width + c, at.load(u + c) * (precision * alpha));
    });
    if (lanes.lane != 0) return;
    key[2 * width] = T(-0.5) * precision * alpha * alpha * norm(h, n);
    if (asks) query[2 * width] = 1;
    if (!f.every) return;
    query[2 * width + 1] = -a.log_sum_exp(n, h);
    key[2 * width + 1] = 1;
  }
};
/// Computes gradients from the gradients `d` of the query and key vectors. Adds to the gradient `da` of the attention
/// trace. Writes `dprojected`, the gradient of the projections u O_hᵀ of the items. Also writes 2 g v_h to `weighted`,
/// with g the gradient of ‖v_h O_h‖².
template <class T, class B>
struct PosteriorFeaturesBackward {
  AttentionTrace<const T, B> a;
  AttentionTrace<T, B> da;
  PosteriorFeatures<T, B> d;
  View<const T, 3, B> square;  // [H, N, D/H]
  T precision, alpha;
  Projection<T, B> dprojected;
  View<T, 3, B> weighted;  // [H, N, D/H]

  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index items = square.extent(1), n = i % items, h = i / items, width = d.width, first = h * width;
    const T* const query = d.has_query(n, h) ? d.query(n, h) : nullptr;
    const T* const key = d.has_key(n, h) ? d.key(n, h) : nullptr;
    T* const du = query ? dprojected.of(n, h) : nullptr;
    const T dnorm = key ? -precision * alpha * alpha * key[2 * width] : T(0);
    each_column<T>(lanes, width, [&](auto at, Index c) {
      using V = typename decltype(at)::Value;
      const auto add = [&](View<T, 2, B> to, V value) {
        if (to.data()) at.store(&to(n, first + c), at.load(&to(n, first + c)) + value);
      };
      at.store(&weighted(h, n, c), key ? at.load(&a.v(n, first + c)) * dnorm : V(T(0)));
      if (query) {
        at.store(du + c, at.load(query + width + c) * (precision * alpha));
        add(da.q, at.load(query + c) * T(a.scale));
      }
      if (!key) return;
      add(da.k, at.load(key + c));
      add(da.v, at.load(key + width + c) + at.load(&square(h, n, c)) * dnorm);
    });
    if (lanes.lane == 0 && d.every && da.log_sum_exp.data()) da.log_sum_exp(n, h) -= query[2 * width + 1];
  }
};

/// Copies the matrix `from` to the matrix `to`, which has more columns, and writes 0 to the additional columns.
template <class T, class B>
struct WidenRows {
  View<const T, 2, B> from;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(Index i) const {
    const Index r = i / to.extent(1), c = i % to.extent(1);
    to.data()[i] = c < from.extent(1) ? from(r, c) : T(0);
  }
};
/// Adds the matrix `from` to the matrix `to`, which has fewer columns. The additional columns of `from` are ignored.
template <class T, class B>
struct AddNarrowed {
  View<const T, 2, B> from;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(Index i) const { to.data()[i] += from(i / to.extent(1), i % to.extent(1)); }
};

}  // namespace functor
}  // namespace gatefold
