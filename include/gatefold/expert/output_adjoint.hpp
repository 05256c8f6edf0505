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
      sum += fn::inner_product<T>(lanes, columns, du.data() + groups.row(s) * columns, bias.data() + e * columns);
    }
    if (lanes.lane > 0) return;
    weights.set_adjoint(s, sum);
    if (!weight.empty()) weight(s) = w;
  }
  /// (3) of the bias: adds to db [E, columns].
  template <class C>
  void add_bias_gradient(C& ctx, View<T, 2, B> db) const {
    B::grouped_sum(ctx, groups.in_slot_order(), du, db, true, groups.rows, weight);
  }
};

/// Where what r [S, columns] becomes for products alone is written: r itself, or scratch for its rounded form
/// (backend.hpp, Multiplied).
template <class T, class B>
View<Multiplied<T, B>, 2, B> made_of(auto& ctx, View<T, 2, B> r) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    return r;
  } else {
    return ctx.template scratch<Multiplied<T, B>>(r.extent(0), r.extent(1));
  }
}

}  // namespace gatefold
