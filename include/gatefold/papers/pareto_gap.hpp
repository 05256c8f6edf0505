#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gatefold/metric/metric.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), Gram, LeastNorm, WeightsOfItem);
GATEFOLD_FUNCTORS((class B), MemberOf);

namespace metric {

/// The measurements of `pareto_gap` for one item, or their means over all items. m is the output of the mixture, w_e
/// are the weights of the gate, and ũ_e the outputs of the experts, divided by their norms. v is the point of least
/// norm in the convex hull of all ũ_e.
struct Pareto {
  double least = 0;       // ‖v‖; 0 if Pareto-stationary
  double normalised = 0;  // ‖Σ_e w_e ũ_e‖, ≥ ‖v‖ if Σ_e w_e = 1
  double mixture = 0;     // ‖m‖ of the output m = Σ_e w_e u_e
  // Cosine of the angle between m and v. It is 0 if m = 0, or if ‖v‖² ≤ 2 max(gap, tolerance), the accuracy of the
  // search.
  double cosine = 0;
  // Duality gap of the search for v. ‖v‖² is at most 2 · gap above its minimum.
  double gap = 0;
};

/// The stopping criteria of the iterative search for the point of least norm in `pareto_gap`.
struct ParetoOptions {
  Index iterations = 1000;
  // The search ends at this duality gap. With 1e-12, the error of the resulting point v is at most 1e-6.
  double tolerance = 1e-12;
};

/// The result of `pareto_gap`: the measurements of every item, and their means.
struct ParetoGap {
  std::vector<Pareto> items;  // [N]
  Pareto mean;                // mean without padding
};

/// Compares the output m of a mixture with the direction v that multi-objective optimisation would take, for every
/// item. Here each expert has one objective, whose gradient is its output u_e; w_e are the weights of the gate. v is
/// the point of least norm in the convex hull of the unit vectors ũ_e, as the search finds it; v* is the exact point.
///
///     v = Σ_e α_e ũ_e,   α = argmin over the simplex of ‖Σ_e α_e ũ_e‖,   ũ_e = u_e / ‖u_e‖              (1)
///     gap = ‖v‖² − min_e ⟨ũ_e, v⟩  ≥ ‖v − v*‖²                                                         (2)
///     normalised = ‖Σ_e w_e ũ_e‖,   mixture = ‖m‖,   cosine = ⟨m, v⟩ / (‖m‖ ‖v‖),   m = Σ_e w_e u_e     (3)
///
/// Source: paper 001 (MomentumSMoE), definition 1 and eq. (4), which regards the mixture as a step along v; Désidéri
/// 2012. The search is Frank–Wolfe with pairwise steps and exact line search (Mitchell, Demyanov and Malozemov 1974),
/// from the centre of the simplex. ũ of a zero output is 0.
/// @param outputs [N, E, D] in  the output of every expert for every item (papers/expert_outputs.hpp)
/// @param weights [N, E]    in  weights of the gate, 0 if an expert is not picked (`gate_weights`)
/// @param valid   [N]       in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless E >= 1, the arrays have these shapes, iterations >= 0 and tolerance >= 0
/// @cost  N·E²·D for the products, N·E² per iteration; N·E² values of scratch, in double
/// @order ties go to the lower expert index
template <class T, class B>
ParetoGap pareto_gap(typename B::Context& ctx, View<T, 3, B> outputs, In<std::remove_const_t<T>, 2, B> weights,
                     const ParetoOptions& options = {}, In<std::remove_const_t<T>, 1, B> valid = {});

template <class T, class B>
ParetoGap pareto_gap(typename B::Context& ctx, View<T, 3, B> outputs, In<std::remove_const_t<T>, 2, B> weights,
                     const ParetoOptions& options, In<std::remove_const_t<T>, 1, B> valid) {
  using U = std::remove_const_t<T>;
  const Index items = outputs.extent(0), experts = outputs.extent(1);
  expect(experts >= 1, "pareto_gap", "outputs.extent(1)", "at least 1", experts);
  expect_shape("pareto_gap", "weights", weights, {items, experts});
  expect(options.iterations >= 0, "pareto_gap", "iterations", "at least 0", options.iterations);
  expect(options.tolerance >= 0, "pareto_gap", "tolerance", "at least 0", options.tolerance);
  auto mark = ctx.mark();
  auto gram = ctx.template scratch<double>(items, experts, experts);
  const auto table = [&] { return ctx.template scratch<double>(items, experts); };
  auto norm = table(), alpha = table(), slope = table();
  auto results = ctx.template scratch<Pareto>(items);
  B::for_each(ctx, gram.size(), functor::Tabulate<functor::Gram<U, B>, double, B>{{outputs}, gram.as(gram.size())});
  B::for_rows(
      ctx, items,
      functor::LeastNorm<U, B>{weights, gram, norm, alpha, slope, results, options.iterations, options.tolerance});
  const auto at = [&](double Pareto::*member) {
    return mean<U, B>(ctx, items, functor::MemberOf<B>{results, member}, valid);
  };
  return {to_vector(ctx, results),
          {at(&Pareto::least), at(&Pareto::normalised), at(&Pareto::mixture), at(&Pareto::cosine), at(&Pareto::gap)}};
}

/// Returns the weights with which the gate combined the experts, as a table of items and experts.
/// @return [N, E]; 0 if the gate did not pick the expert for the item
template <class T, class B>
Tensor<T, 2, B> gate_weights(typename B::Context& ctx, const SparsePlan<T, B>& plan) {
  const auto here = ctx.here();
  Tensor<T, 2, B> weights(plan.items(), plan.experts());
  B::for_each(
      ctx, plan.items(),
      functor::WeightsOfItem<T, B>{plan.item_offsets, plan.item_slots, plan.pick, plan.expert, plan.weight, weights});
  return weights;
}

}  // namespace metric

namespace functor {

/// Returns one inner product of expert outputs of an item, gram[n,e,f] = ⟨u[n,e], u[n,f]⟩ for i = (n · E + e) · E + f.
template <class T, class B>
struct Gram {
  View<const T, 3, B> u;
  GATEFOLD_HD double operator()(Index i) const {
    const Index experts = u.extent(1), f = i % experts, e = i / experts % experts, n = i / experts / experts;
    double sum = 0;
    for (Index d = 0; d < u.extent(2); ++d) sum += static_cast<double>(u(n, e, d)) * static_cast<double>(u(n, f, d));
    return sum;
  }
};

/// Finds the point of least norm in the convex hull of the experts' unit output vectors for item n. Only the inner
/// products of the vectors are needed. Each step moves weight from the vector that raises the norm most to the vector
/// that lowers it most. An exact line search finds the length of the step.
template <class T, class B>
struct LeastNorm {
  View<const T, 2, B> weights;
  View<double, 3, B> gram;                // [N, E, E] in: ⟨u_e, u_f⟩; normalise() replaces it by ⟨ũ_e, ũ_f⟩
  View<double, 2, B> norm, alpha, slope;  // [N, E] ‖u_e‖, weights of the unit vectors ũ_e in v, ⟨ũ_e, v⟩
  View<metric::Pareto, 1, B> results;
  Index iterations;
  double tolerance;

  /// Divides the inner products of the expert outputs by the norms of both outputs, so that they become inner products
  /// of unit vectors. Inner products with a zero output stay 0.
  GATEFOLD_HD void normalise(Index n) const {
    const Index experts = norm.extent(1);
    for (Index e = 0; e < experts; ++e) norm(n, e) = std::sqrt(gram(n, e, e));
    for (Index e = 0; e < experts; ++e)
      for (Index f = 0; f < experts; ++f) {
        const double norms = norm(n, e) * norm(n, f);
        gram(n, e, f) = norms > 0 ? gram(n, e, f) / norms : 0 * gram(n, e, f);  // keeps NaN
      }
  }
  GATEFOLD_HD void slopes(Index n) const {
    for (Index e = 0; e < alpha.extent(1); ++e) {
      slope(n, e) = 0;
      for (Index f = 0; f < alpha.extent(1); ++f) slope(n, e) += alpha(n, f) * gram(n, e, f);
    }
  }
  /// Returns the square root of v. Negative v, which can result from rounding, gives 0; NaN gives NaN.
  GATEFOLD_HD static double root(double v) { return v <= 0 ? 0 : std::sqrt(v); }
  GATEFOLD_HD double squared(Index n) const {
    double sum = 0;
    for (Index e = 0; e < alpha.extent(1); ++e) sum += alpha(n, e) * slope(n, e);
    return sum;
  }
  GATEFOLD_HD double solve(Index n) const {
    const Index experts = alpha.extent(1);
    for (Index e = 0; e < experts; ++e) alpha(n, e) = 1 / static_cast<double>(experts);
    slopes(n);
    for (Index i = 0;; ++i) {
      Index to = 0, from = -1;
      for (Index e = 0; e < experts; ++e) {
        if (slope(n, e) < slope(n, to)) to = e;
        if (alpha(n, e) > 0 && (from < 0 || slope(n, e) > slope(n, from))) from = e;
      }
      const double left = squared(n) - slope(n, to);
      if (!(left > tolerance) || i == iterations) return left <= 0 ? 0 : left;
      const double fall = slope(n, from) - slope(n, to);
      const double length = gram(n, to, to) - 2 * gram(n, to, from) + gram(n, from, from);
      const double step = fall < alpha(n, from) * length ? fall / length : alpha(n, from);
      alpha(n, to) += step;
      alpha(n, from) = step < alpha(n, from) ? alpha(n, from) - step : 0;
      slopes(n);
    }
  }

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (lanes.lane != 0) return;
    const Index experts = alpha.extent(1);
    normalise(n);
    const double gap = solve(n), square = squared(n), least = root(square);
    const bool vanishes = square <= 2 * (gap > tolerance ? gap : tolerance);  // ‖v‖ is 0 up to the accuracy
    double of_units = 0, of_outputs = 0, product = 0;
    for (Index e = 0; e < experts; ++e) {
      const double w = static_cast<double>(weights(n, e));
      product += w * norm(n, e) * slope(n, e);
      for (Index f = 0; f < experts; ++f) {
        const double units = w * static_cast<double>(weights(n, f)) * gram(n, e, f);
        of_units += units;
        of_outputs += units * norm(n, e) * norm(n, f);
      }
    }
    const double mixture = root(of_outputs), norms = mixture * least;
    const double cosine = norms == 0 || vanishes ? 0 : product / norms;  // keeps NaN
    results(n) = {least, root(of_units), mixture, cosine > 1 ? 1 : cosine < -1 ? -1 : cosine, gap};
  }
};

/// Writes the gate's weights as a table: weights[n,e] is the weight with which item n uses expert e, or 0 if the gate
/// did not pick e for n.
template <class T, class B>
struct WeightsOfItem {
  View<const Index, 1, B> item_offsets, item_slots, pick, expert;
  View<const T, 1, B> weight;
  View<T, 2, B> weights;
  GATEFOLD_HD void operator()(Index n) const {
    for (Index e = 0; e < weights.extent(1); ++e) weights(n, e) = 0;
    for (Index o = item_offsets(n); o < item_offsets(n + 1); ++o) {
      const Index p = pick(item_slots(o));
      weights(n, expert(p)) += weight(p);
    }
  }
};
template <class B>
struct MemberOf {
  using Member = double metric::Pareto::*;
  View<const metric::Pareto, 1, B> results;
  Member member;
  GATEFOLD_HD double operator()(Index n) const { return results(n).*member; }
};

}  // namespace functor

}  // namespace gatefold
