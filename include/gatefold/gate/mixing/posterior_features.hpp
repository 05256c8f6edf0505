#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/gate/mixing/streamed_mixing.hpp"

/// Functors for the mixing AttentionPosterior. They write a query and a key vector for each item, whose scalar products
/// are the logarithms of the posterior weights, and compute the gradients of these vectors.
namespace gatefold::functor {

/// Query and key vectors (features) of item n and attention head h for AttentionPosterior. The scalar product of the
/// query of item i and the key of item j is the log of the posterior weight, up to the normaliser:
///
///     query  [scale · q_h, α u O_hᵀ / σ², 1, −log_sum_exp_h],   key  [k_h, v_h, −‖m_h‖² / 2σ², 1]          (1)
///
/// Here u is the item, q_h, k_h, v_h are its vectors in the attention, and O_h is the output projection. m_h = α v_h
/// O_h, with α = 1, or H with mean_of_heads. Because ⟨u, m_h⟩ = α ⟨u O_hᵀ, v_h⟩, the vectors need only the width of a
/// head, not D. The last element of query and key exists only for `every`. An item that follows one head has only the
/// query of that head. If the whole sequence follows this head, the item also has only the key of this head; otherwise
/// it has the keys of all heads. Position keys are [places, 0, …].
template <class T, class B>
struct PosteriorFeatures {
  Index width;  // D / H
  bool every;
  View<const Index, 1, B> head;  // [N] the attention head that each item follows
  MixingHeads<T, B> of;

  GATEFOLD_HD static Index columns(Index width, bool every) { return 2 * width + (every ? 2 : 1); }
  /// Returns whether item n has a query vector for attention head h. has_key returns this for its key vector.
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
/// An epilogue of a matrix product, which the product calls for each element v before it stores v unchanged. It also
/// adds the element in row s and column j to dx[items[s], j], the gradient of the item of row s.
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

}  // namespace gatefold::functor
