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

/// The gradient of the outputs z of experts that end in a matrix product. It is either dz[s] itself, or dz[s] = w[s]
/// du[row(s)] if each item receives the weighted sum of its slots. In the second case, the gradient of w is computed by
/// (2) from values before the last product, so that neither z nor dz is needed.
///
///     u[n] = Σ_{s of n} w[s] z[s],   z[s] = h[s] V_e + b_e,   r[s] = du[row(s)] V_eᵀ                     (1)
///     dw[s] = ⟨du[row(s)], z[s]⟩ = ⟨r[s], h[s]⟩ + ⟨du[row(s)], b_e⟩                                     (2)
///     dh[s] = w[s] r[s],   dV_e = Σ_s (w[s] h[s])ᵀ du[row(s)],   db_e = Σ_s w[s] du[row(s)]             (3)
///
/// Without weights, w = 1.
/// @order  the sums of a slot depend only on that slot
template <class T, class B>
struct OutputAdjoint {
  View<const T, 2, B> du;       // [N, columns], or dz [S, columns]
  Groups<B> groups;             // the row of du for each slot
  SlotWeights<T, B> weights{};  // empty: w = 1
  View<const T, 2, B> bias{};   // [E, columns], or [·, 0] without bias
  View<T, 1, B> weight{};       // [S] w in slot order, written by run; used if there are both weights and a bias

  /// Computes (2) for slot s, which must belong to an expert. f(w[s]) processes the row of the slot and returns ⟨r[s],
  /// h[s]⟩ on every lane.
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
  /// Returns w[s]. Slot s must belong to an expert.
  GATEFOLD_HD T weight_of(Index s) const { return weights.weight.data() ? weights(s) : T(1); }
  /// Computes (3) for the bias: adds to db [E, columns].
  template <class C>
  void add_bias_gradient(C& ctx, View<T, 2, B> db) const {
    B::grouped_sum(ctx, groups.in_slot_order(), du, db, true, groups.rows, weight);
  }
};

namespace functor {

// A Hidden is a functor that an expert applies to each element of r. hidden(at, w, r, i) writes the values of h and dh
// that backward needs for element i of [S, columns], and returns r h. If its constant `scalar_only` is true, it is
// called with one value at a time.

/// Applies a Hidden to the row r of slot s, which is in memory.
template <class Hidden, class T, class B>
struct HiddenAdjointRow {
  OutputAdjoint<T, B> outputs;
  Hidden hidden;
  Index columns;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s, const T* of_r) const {
    outputs.run(lanes, s, [&](T w) {
      const Hidden of = hidden;  // a local copy, which the stores in the loop cannot alias
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
/// Applies a Hidden in the epilogue of the product that computes r.
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
/// Computes (2) for a slot after HiddenAdjoint, from ⟨r, h⟩.
template <class T, class B>
struct SlotAdjoint {
  OutputAdjoint<T, B> outputs;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s, T sum) const {
    outputs.run(lanes, s, [&](T) { return sum; });
  }
};

}  // namespace functor

/// Computes the gradients of the hidden values h [S, columns] and of the weights, (2) and (3), through the product with
/// V.
/// @param hidden  the functor of the expert, a `Hidden`
/// @param v [E, columns, out] in, the matrices V_e of the last product
/// @param r [S, columns]  memory for r. It is empty if B has a type Multiplied, because r then exists only in the
///         epilogue of a product and not in memory
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

/// Returns scratch for r [S, columns], or an empty view if r is not stored.
template <class T, class B>
View<T, 2, B> memory_of_r(auto& ctx, Index slots, Index columns) {
  return ctx.template scratch<T>(std::is_same_v<T, Multiplied<T, B>> ? slots : Index(0), columns);
}
/// Returns memory for a result that only products read: r itself, or scratch for values rounded to Multiplied
/// (backend.hpp).
template <class T, class B>
View<Multiplied<T, B>, 2, B> made_of(auto& ctx, View<T, 2, B> r, Index slots) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    return r;
  } else {
    return ctx.template scratch<Multiplied<T, B>>(slots, r.extent(1));
  }
}

}  // namespace gatefold
