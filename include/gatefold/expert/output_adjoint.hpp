#pragma once

#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

/// Backward pass of the last matrix product z[s] = h[s] V_e + b_e of an expert, and of the weighted sum u[n] of the
/// outputs z[s] for item n. h are the hidden values. Equation (2) computes the gradient of the weight w[s] of slot s
/// from h, so that neither z nor dz needs to be in memory.
///
///     u[n] = Σ_{s of n} w[s] z[s],   z[s] = h[s] V_e + b_e,   r[s] = du[row(s)] V_eᵀ                     (1)
///     dw[s] = ⟨du[row(s)], z[s]⟩ = ⟨r[s], h[s]⟩ + ⟨du[row(s)], b_e⟩                                     (2)
///     dh[s] = w[s] r[s],   dV_e = Σ_s (w[s] h[s])ᵀ du[row(s)],   db_e = Σ_s w[s] du[row(s)]             (3)
///
/// Without weights, w = 1 and du is the gradient dz of the outputs.
/// @order  the sums of a slot depend only on that slot
template <class T, class B>
struct OutputAdjoint {
  View<const T, 2, B> du;       // [N, columns] gradient of u, or [S, columns] gradient of z
  Groups<B> groups;             // slot s reads row groups.row(s) of du
  SlotWeights<T, B> weights{};  // empty: w = 1
  View<const T, 2, B> bias{};   // [E, columns], or [·, 0] without bias
  // [S] Memory for a copy of the weights w in slot order, which run() writes. Empty unless the product has a bias.
  View<T, 1, B> weight{};

  /// Computes the gradient (2) of the weight w[s] of slot s, which must belong to an expert. Calls f(w[s]), which must
  /// process the row of the slot and return ⟨r[s], h[s]⟩ on every lane (the threads that compute the row). h[s] are the
  /// hidden values and r[s] their gradient without the weight, as in (1). Without weights, only calls f(1).
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
  /// Returns the weight w[s] of slot s, or 1 without weights. The slot must belong to an expert.
  GATEFOLD_HD T weight_of(Index s) const { return weights.weight.data() ? weights(s) : T(1); }
  /// Computes the gradient of the bias of the last product, (3), and adds it to db [E, columns].
  void add_bias_gradient(auto& ctx, View<T, 2, B> db) const {
    B::grouped_sum(ctx, groups.in_slot_order(), du, db, true, groups.rows, weight);
  }
};

namespace functor {

// A template argument `Hidden` is a functor of an expert that computes the backward pass of its hidden values h.
// hidden(at, w, r, i) receives the weight w of a slot, and r, the gradient of h before it is multiplied by w. It writes
// the values for element i of [S, columns] that backward needs, and returns r h. If its constant `scalar_only` is true,
// it is called with one value at a time.

/// Calls the functor `hidden` for each element of row s of r, the gradients of hidden values before they are multiplied
/// by the weight of the slot. It reads r from memory; HiddenAdjoint runs in the epilogue of a product instead.
template <class Hidden, class T, class B>
struct HiddenAdjointRow {
  OutputAdjoint<T, B> outputs;
  Hidden hidden;
  Index columns;

  GATEFOLD_HD void operator()(const auto& lanes, Index s, const T* of_r) const {
    outputs.run(lanes, s, [&](T w) {
      // A local copy of the functor, because the compiler must assume that stores in the loop can change the member.
      const Hidden of = hidden;
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
/// Calls the functor `hidden` for each value r of a product, in the epilogue of this product. r is the gradient of a
/// hidden value before it is multiplied by the weight of the slot; it is not stored in memory.
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
/// Computes the gradient of the weight of slot s, equation (2) of OutputAdjoint, from sum = ⟨r[s], h[s]⟩. HiddenAdjoint
/// returns the terms of this sum.
template <class T, class B>
struct SlotAdjoint {
  OutputAdjoint<T, B> outputs;

  GATEFOLD_HD void operator()(const auto& lanes, Index s, T sum) const {
    outputs.run(lanes, s, [&](T) { return sum; });
  }
};

}  // namespace functor

/// Computes r [S, columns], the product of the output gradients and the transposed matrices V_e, as in (1). Calls
/// `hidden` for each element of r, and computes the gradients (2) of the slot weights w.
/// @param hidden  the expert's functor for hidden values, see `Hidden` above
/// @param v [E, columns, out] in, the matrices V_e of the last product
/// @param r [S, columns]  memory for r. It is empty if B multiplies in a narrower type than T, because r is then used
///         in the epilogue of the product and not stored
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

/// Returns scratch memory for r [S, columns], the gradients of hidden values before they are multiplied by the weights
/// of the slots. Returns an empty view if r is not stored, because the backend multiplies in a narrower type than T.
template <class T, class B>
View<T, 2, B> memory_of_r(auto& ctx, Index slots, Index columns) {
  return ctx.template scratch<T>(std::is_same_v<T, Multiplied<T, B>> ? slots : Index(0), columns);
}
/// Returns memory [S, columns] for a result that only matrix products read. If products round their arguments to a
/// narrower type Multiplied (backend.hpp), this is scratch memory of that type. Otherwise it is the memory of r, which
/// is then overwritten.
template <class T, class B>
View<Multiplied<T, B>, 2, B> made_of(auto& ctx, View<T, 2, B> r, Index slots) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    return r;
  } else {
    return ctx.template scratch<Multiplied<T, B>>(slots, r.extent(1));
  }
}

}  // namespace gatefold
