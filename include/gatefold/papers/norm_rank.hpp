#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gatefold/backend/order.hpp"
#include "gatefold/metric/metric.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), RowNorm, NormRank, NormOfExpert, ExpertOfSlot);

namespace metric {

/// Returns, for every rank r, how often the picked expert has the r-th largest output norm among all experts. The
/// result shows whether the gate prefers experts with large or with small outputs. u_e(x_n) is the output of expert e
/// for item n.
///
///     rank(n, e) = |{f : ‖u_f(x_n)‖ > ‖u_e(x_n)‖, or = and f < e}|                                     (1)
///     share[r]   = share of the picks (n, e) with rank(n, e) = r,   r = 0 the largest                  (2)
///
/// Source: paper 001 (MomentumSMoE), sec. 6, fig. 5 (left): "the proportion of times the experts are chosen according
/// to their norms", with ‖f_i(x)‖ of all experts at the item's own x. Even shares are desirable. The paper regards the
/// output of an expert as the gradient of an objective. A small norm (large r) then means that this objective has
/// nearly converged.
/// @param outputs [N, E, D] in  the output of every expert for every item (papers/expert_outputs.hpp)
/// @param valid   [N]       in  1 = item, 0 = padding; empty: all are items
/// @return [E], with sum 1, or all 0 if there are no picks
/// @throws ArgumentError unless outputs is [N, E, D] with the N and E of the plan, and valid is [N] or empty
/// @cost  N·E·D for the norms, S·E comparisons
/// @order NaN counts as the smallest norm; ties go to the lower expert index
template <class T, class B>
std::vector<double> norm_rank(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<T, 3, B> outputs,
                              In<T, 1, B> valid = {}) {
  const Index items = plan.items(), experts = plan.experts(), rows = items * experts;
  expect_shape("norm_rank", "outputs", outputs, {items, experts, any_extent});
  if (!valid.empty()) expect_shape("norm_rank", "valid", valid, {items});
  auto mark = ctx.mark();
  auto norms = ctx.template scratch<double>(items, experts);
  using Norm = functor::RowNorm<T, B>;
  B::for_each(ctx, rows, functor::Tabulate<Norm, double, B>{{outputs.as(rows, outputs.extent(2))}, norms.as(rows)});
  const auto counts =
      histogram<B>(ctx, plan.expert.size(), functor::NormRank<T, B>{plan.item, plan.expert, norms, {valid}}, experts);
  const double picks = static_cast<double>(std::accumulate(counts.begin(), counts.end(), Index(0)));
  std::vector<double> share;
  for (const Index c : counts) share.push_back(picks > 0 ? static_cast<double>(c) / picks : 0);
  return share;
}

/// One expert in `experts_by_norm`.
struct ExpertNorm {
  Index expert = 0;
  double norm = 0;   // mean output norm
  double share = 0;  // share of the picks
};

/// Returns all experts with their shares of the picks, sorted by the mean norm of their outputs z[s] for the items that
/// the gate sent to them. The expert with the largest norm comes first.
///
///     norm[e] = mean of ‖z[s]‖ over the slots s of e,   share[e] = slots of e / all slots              (3)
///
/// norm_rank and this function are two interpretations of fig. 5 (left) of paper 001. This function costs less, because
/// it does not need the outputs of experts that were not picked. Experts without picks have norm and share 0.
/// @param z     [S, D] in  outputs in slot order (slot_outputs, papers/expert_outputs.hpp)
/// @param valid [N]    in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless z is [S, D] with the S of the plan, and valid is [N] or empty
/// @order NaN comes last; ties go to the lower expert index
template <class T, class B>
std::vector<ExpertNorm> experts_by_norm(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<T, 2, B> z,
                                        In<T, 1, B> valid = {}) {
  expect_shape("experts_by_norm", "z", z, {plan.rows.size(), any_extent});
  if (!valid.empty()) expect_shape("experts_by_norm", "valid", valid, {plan.items()});
  const auto counts =
      histogram<B>(ctx, plan.rows.size(), functor::ExpertOfSlot<T, B>{plan.groups(), {valid}}, plan.experts());
  const auto totals = each<B>(ctx, plan.experts(), functor::NormOfExpert<T, B>{{z}, plan.offsets, plan.rows, {valid}});
  const double slots = static_cast<double>(std::accumulate(counts.begin(), counts.end(), Index(0)));
  std::vector<ExpertNorm> experts;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const double c = static_cast<double>(counts[e]);
    experts.push_back({static_cast<Index>(e), c > 0 ? totals[e] / c : 0, c > 0 ? c / slots : 0});
  }
  std::sort(experts.begin(), experts.end(),
            [](const auto& a, const auto& b) { return functor::ranks_before(a.norm, a.expert, b.norm, b.expert); });
  return experts;
}

/// Returns the mean Euclidean norm of the N rows of u, for example of the output of a mixture.
///
///     (1/N) Σ_n ‖u[n]‖                                                                                  (4)
///
/// Source: paper 001, fig. 2 and 3. The norm falls with depth and during training, as a gradient does.
/// @param u     [N, D] in
/// @param valid [N]    in  1 = item, 0 = padding; empty: all are items
template <class T, class B>
double mean_norm(typename B::Context& ctx, View<T, 2, B> u, In<std::remove_const_t<T>, 1, B> valid = {}) {
  using U = std::remove_const_t<T>;
  return mean<U, B>(ctx, u.extent(0), functor::RowNorm<U, B>{u}, valid);
}

}  // namespace metric

namespace functor {

/// Returns the Euclidean norm of row i of a matrix, ‖rows[i,:]‖.
template <class T, class B>
struct RowNorm {
  View<const T, 2, B> rows;
  GATEFOLD_HD double operator()(Index i) const {
    double squares = 0;
    for (Index d = 0; d < rows.extent(1); ++d) {
      const double v = static_cast<double>(rows(i, d));
      squares += v * v;
    }
    return std::sqrt(squares);
  }
};
/// Returns how many experts have a larger output norm than the picked expert, for the item of pick p. Ties go to the
/// lower expert index. Returns −1 if the pick was dropped or its item is padding.
template <class T, class B>
struct NormRank {
  View<const Index, 1, B> item, expert;
  View<const double, 2, B> norms;
  IsItem<T, B> is_item;
  GATEFOLD_HD Index operator()(Index p) const {
    const Index own = expert(p), n = item(p);
    if (own < 0 || !is_item(n)) return -1;
    Index before = 0;
    for (Index e = 0; e < norms.extent(1); ++e) before += ranks_before(norms(n, e), e, norms(n, own), own);
    return before;
  }
};
/// Returns the sum of the output norms of expert e over its slots (rows of work) whose items are not padding.
template <class T, class B>
struct NormOfExpert {
  RowNorm<T, B> norm;
  View<const Index, 1, B> offsets, rows;
  IsItem<T, B> is_item;
  GATEFOLD_HD double operator()(Index e) const {
    double total = 0;
    for (Index s = offsets(e); s < offsets(e + 1); ++s)
      if (is_item(rows(s))) total += norm(s);
    return total;
  }
};
/// Returns the expert that computes slot s (a row of work), or −1 if the slot is unused or its item is padding.
template <class T, class B>
struct ExpertOfSlot {
  Groups<B> groups;
  IsItem<T, B> is_item;
  GATEFOLD_HD Index operator()(Index s) const {
    const Index e = groups.expert(s);
    return e >= 0 && is_item(groups.row(s)) ? e : Index(-1);
  }
};

}  // namespace functor

}  // namespace gatefold
