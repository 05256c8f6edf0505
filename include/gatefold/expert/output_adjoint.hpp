#pragma once

#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/routing/slot_weights.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// The adjoint of the outputs z of experts that end in a product: dz[s] itself, or dz[s] = w[s] du[row(s)] where items
/// receive the weighted sum of their slots. Weights then have their adjoint in front of that product instead of behind
/// it, and neither z nor dz is needed.
///
///     u[n] = Σ_{s of n} w[s] z[s],   z[s] = h[s] V_e + b_e,   r[s] = du[row(s)] V_eᵀ                     (1)
///     dw[s] = ⟨du[row(s)], z[s]⟩ = ⟨r[s], h[s]⟩ + ⟨du[row(s)], b_e⟩                                     (2)
///     dh[s] = w[s] r[s],   dV_e = Σ_s (w[s] h[s])ᵀ du[row(s)],   db_e = Σ_s w[s] du[row(s)]             (3)
///
/// Without weights w = 1.
/// @order  a slot's sums depend on it alone
template <class T, class B>
struct OutputAdjoint {
  View<const T, 2, B> du;       // [N, columns], or dz [S, columns]
  Groups<B> groups;             // which rows of du slots have
  SlotWeights<T, B> weights{};  // or none
  View<const T, 2, B> bias{};   // [E, columns], or [·, 0] without
  View<T, 1, B> weight{};       // [S] w in slot order, kept by run for the bias where there are both

  /// (2) for a slot in use: f(w[s]) does what is to be done with its row, and returns ⟨r[s], h[s]⟩ on every lane.
  template <class Lanes, class F>
  GATEFOLD_HD void run(const Lanes& lanes, Index s, const F& f) const {
    if (!weights.weight.data()) {
      f(T(1));
      return;
    }
    const T w = from_first(lanes, [&] { return weights(s); });
    T sum = f(w);
    if (const Index columns = bias.extent(1); columns > 0) {
      const Index e = from_first(lanes, [&] { return groups.expert(s); });
      sum += functor::inner_product<T>(lanes, columns, du.data() + groups.row(s) * columns, bias.data() + e * columns);
    }
    if (lanes.lane > 0) return;
    weights.set_adjoint(s, sum);
    if (!weight.empty()) weight(s) = w;
  }
  /// w[s] of a slot in use.
  GATEFOLD_HD T weight_of(Index s) const { return weights.weight.data() ? weights(s) : T(1); }
  /// (3) of the bias: adds to db [E, columns].
  template <class C>
  void add_bias_gradient(C& ctx, View<T, 2, B> db) const {
    B::grouped_sum(ctx, groups.in_slot_order(), du, db, true, groups.rows, weight);
  }
};

namespace functor {

// What an expert does with an element of r is a Hidden: hidden(at, w, r, i) at element i of [S, columns] writes what
// the backward needs of h and dh, and returns r h. It says `scalar_only` where it is to have one value at a time.

/// The row r of slot s, in memory: all of its elements.
template <class Hidden, class T, class B>
struct HiddenAdjointRow {
  OutputAdjoint<T, B> outputs;
  Hidden hidden;
  Index columns;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s, const T* of_r) const {
    outputs.run(lanes, s, [&](T w) {
      const Hidden of = hidden;  // a copy of its own, which no store in the loop can alias
      const Index first = s * columns;
      const auto element = [&](const auto& at, Index j) { return of(at, w, at.load(of_r + j), first + j); };
      if constexpr (Hidden::scalar_only) {
        return sum_elements<T>(lanes, columns, element);
      } else {
        return sum_columns<T>(lanes, columns, element);
      }
    });
  }
};
/// The same as the epilogue of the product that gives r,
template <class Hidden, class T, class B>
struct HiddenAdjoint {
  static constexpr bool scalar_only = Hidden::scalar_only;
  OutputAdjoint<T, B> outputs;
  Hidden hidden;
  Index columns;

  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value r) const {
    return hidden(at, outputs.weight_of(s), r, s * columns + j);
  }
};
/// and what is left to do for a slot, given ⟨r, h⟩.
template <class T, class B>
struct SlotAdjoint {
  OutputAdjoint<T, B> outputs;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s, T sum) const {
    outputs.run(lanes, s, [&](T) { return sum; });
  }
};

}  // namespace functor

/// The adjoints of hidden values h [S, columns] and of the weights, (2) and (3), through the product with V.
/// @param hidden  a Hidden
/// @param v [E, columns, out] in
/// @param r [S, columns]  memory for r; empty where B names Multiplied: there r is an epilogue's and never in memory
template <class T, class B, class Hidden>
void hidden_adjoint(auto& ctx, const OutputAdjoint<T, B>& outputs, View<const T, 3, B> v, View<T, 2, B> r,
                    const Hidden& hidden) {
  const Index columns = v.extent(1);
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    B::grouped_gemm_rows(ctx, outputs.groups, outputs.du, v, as_transposed, r,
                         functor::HiddenAdjointRow<Hidden, T, B>{outputs, hidden, columns});
  } else {
    B::grouped_gemm_sum(ctx, outputs.groups, outputs.du, v, as_transposed, columns,
                        functor::HiddenAdjoint<Hidden, T, B>{outputs, hidden, columns},
                        functor::SlotAdjoint<T, B>{outputs});
  }
}

/// Memory for r [S, columns], if it is to be in memory.
template <class T, class B>
View<T, 2, B> memory_of_r(auto& ctx, Index slots, Index columns) {
  return ctx.template scratch<T>(std::is_same_v<T, Multiplied<T, B>> ? slots : Index(0), columns);
}
/// That of what it becomes for products alone: the same, or scratch for the rounded form (backend.hpp, Multiplied).
template <class T, class B>
View<Multiplied<T, B>, 2, B> made_of(auto& ctx, View<T, 2, B> r, Index slots) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    return r;
  } else {
    return ctx.template scratch<Multiplied<T, B>>(slots, r.extent(1));
  }
}

}  // namespace gatefold
