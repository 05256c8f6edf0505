#pragma once

#include <cmath>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Attention of the positions of an item among themselves, in grouped products: every slot is an expert of its own whose
/// weights are its keys. Probabilities of one head at a time stand in scratch; what is kept is a log-sum-exp per row.
namespace gatefold {

namespace fn {

/// offsets[s] = L · (s clamped to the slots in use)
template <class B>
struct EachSlotOffsets {
  Groups<B> items;
  Index length;
  View<Index, 1, B> offsets;
  GATEFOLD_HD void operator()(Index s) const {
    const Index first = items.offsets(0), last = items.offsets(items.experts());
    offsets(s) = length * (s < first ? first : s > last ? last : s);
  }
};
/// λ[t] = log Σ_j exp(scale · s[t,j]) over the positions j that t may see
template <class T, class B>
struct LogSumExpRows {
  Groups<B> items;
  bool causal;
  T scale;
  View<const T, 2, B> s;           // [S · L, L]
  View<T, 2, B> log_sum_exp;       // [S · L, heads]
  Index head;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    const Index length = s.extent(1), seen = causal ? t % length + 1 : length;
    if (items.expert(t / length) < 0) return;
    const auto score = [&](auto at, Index j) { return at.load(&s(t, j)); };
    const T top = max_columns<T>(lanes, seen, score);
    const T total = sum_columns<T>(lanes, seen, [&](auto at, Index j) {
      using math::exp;
      return exp((score(at, j) - top) * scale);
    });
    if (lanes.lane == 0) log_sum_exp(t, head) = scale * top + std::log(total);
  }
};
/// s[t,j] ← exp(scale · s[t,j] − λ[t]), 0 where t may not see j
template <class T, class B>
struct Probabilities {
  Groups<B> items;
  bool causal;
  T scale;
  View<const T, 2, B> log_sum_exp;
  Index head;
  View<T, 2, B> s;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    const Index length = s.extent(1), seen = causal ? t % length + 1 : length;
    if (items.expert(t / length) < 0) return;
    const T normaliser = log_sum_exp(t, head);
    each_column<T>(lanes, seen, [&](auto at, Index j) {
      using math::exp;
      at.store(&s(t, j), exp(at.load(&s(t, j)) * scale - normaliser));
    });
    each_column<T>(lanes, length - seen, [&](auto at, Index j) {
      using V = typename decltype(at)::Value;
      at.store(s.data() + t * length + seen + j, V(T(0)));
    });
  }
};
/// p[t,j] ← scale · p[t,j] (dp[t,j] − Σ_i p[t,i] dp[t,i]); dp [S · L, L], or [S, L] for a row that all of a slot share
template <class T, class B>
struct ProbabilitiesBackward {
  Groups<B> items;
  T scale;
  View<const T, 2, B> dp;
  View<T, 2, B> p;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index t) const {
    const Index length = p.extent(1), row = dp.extent(0) == p.extent(0) ? t : t / length;
    if (items.expert(t / length) < 0) return;
    const T dot = sum_columns<T>(lanes, length, [&](auto at, Index j) { return at.load(&p(t, j)) * at.load(&dp(row, j)); });
    each_column<T>(lanes, length, [&](auto at, Index j) {
      at.store(&p(t, j), at.load(&p(t, j)) * ((at.load(&dp(row, j)) - dot) * scale));
    });
  }
};

}  // namespace fn

/// Attention inside each of the items of `groups`, `length` positions each; T = S · L rows.
///
///     P[t,j] = exp(scale · ⟨q_t, k_j⟩ − λ_t),   λ_t = log Σ_j exp(scale · ⟨q_t, k_j⟩)                    (1)
///
/// over the positions j of t's item, up to t if causal. Lives in scratch: take a mark first.
/// @cost   2·T·L·D flop for each product, T·L of scratch for P
/// @order  a product sums positions ascending, a row's normaliser too; scores and λ are rounded to T, so that P has a
///         relative error of about ε·max |score|, ε that of T: scores near 1e3 leave a float four digits
template <class T, class B>
struct SelfAttention {
  Groups<B> items, each;  // each: every slot in use as an expert with L rows
  Index length;
  T scale;
  bool causal;

  template <class C>
  SelfAttention(C& ctx, Groups<B> groups, Index positions, double score_scale, bool is_causal)
      : items(groups), length(positions), scale(T(score_scale)), causal(is_causal) {
    auto offsets = ctx.template scratch<Index>(groups.slots + 1);
    B::for_each(ctx, groups.slots + 1, fn::EachSlotOffsets<B>{groups, length, offsets});
    each = {offsets, {}, groups.slots * length};
  }
  Index rows() const { return each.slots; }

  /// Writes P [T, L] and column `head` of λ [T, heads]; q, k [T, D].
  template <class C>
  void probabilities(C& ctx, In<T, 2, B> q, In<T, 2, B> k, Out<T, 2, B> p, Out<T, 2, B> log_sum_exp, Index head) const {
    scores(ctx, q, k, p);
    B::for_rows(ctx, rows(), fn::LogSumExpRows<T, B>{items, causal, scale, p, log_sum_exp, head});
    B::for_rows(ctx, rows(), fn::Probabilities<T, B>{items, causal, scale, log_sum_exp, head, p});
  }
  /// The same P from the λ that was kept.
  template <class C>
  void again(C& ctx, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> log_sum_exp, Index head, Out<T, 2, B> p) const {
    scores(ctx, q, k, p);
    B::for_rows(ctx, rows(), fn::Probabilities<T, B>{items, causal, scale, log_sum_exp, head, p});
  }
  /// P becomes the adjoint of ⟨q_t, k_j⟩, given dP (see fn::ProbabilitiesBackward).
  template <class C>
  void probabilities_backward(C& ctx, In<T, 2, B> dp, Out<T, 2, B> p) const {
    B::for_rows(ctx, rows(), fn::ProbabilitiesBackward<T, B>{items, scale, dp, p});
  }
  /// y_t = Σ_j m[t,j] x_j
  template <class C>
  void apply(C& ctx, In<T, 2, B> m, In<T, 2, B> x, Out<T, 2, B> y) const {
    B::grouped_gemm(ctx, each, m, of_slots(x), false, y, fn::Store{});
  }
  /// m[t,j] = ⟨y_t, x_j⟩
  template <class C>
  void scores(C& ctx, In<T, 2, B> y, In<T, 2, B> x, Out<T, 2, B> m) const {
    B::grouped_gemm(ctx, each, y, of_slots(x), true, m, fn::Store{});
  }
  /// x_j += Σ_t m[t,j] y_t
  template <class C>
  void add_transposed(C& ctx, In<T, 2, B> m, In<T, 2, B> y, Out<T, 2, B> x) const {
    B::grouped_outer(ctx, each, m, y, of_slots(x));
  }

 private:
  template <class V>
  auto of_slots(const V& x) const {
    return x.as(items.slots, length, x.extent(1));
  }
};

}  // namespace gatefold
