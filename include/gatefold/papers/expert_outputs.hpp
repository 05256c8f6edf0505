#pragma once

#include <type_traits>

#include "gatefold/backend/groups.hpp"
#include "gatefold/layer/mixture.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class B), EveryItem);
GATEFOLD_FUNCTORS((class T, class B), ByItem);

/// Returns the output of every expert of a mixture for every item, also of experts that the gate does not pick for it.
/// The functions metric::pareto_gap and metric::norm_rank take these outputs.
///
///     u[n,e] = expert_e(x[n])                                                                           (1)
///
/// @param params  parameters of the mixture
/// @param x [N, in_dim] in
/// @return [N, E, out_dim]
/// @throws ArgumentError unless x is [N, in_dim] and the expert accepts the shapes of its parameters
/// @cost   E/K times the experts' work in an inference with K picks per item; allocates N·E·out_dim values, and uses as
///         many values of scratch
template <class M, class T, class B>
auto expert_outputs(typename B::Context& ctx, const M& mixture, const Params<M, std::remove_const_t<T>, B>& params,
                    View<T, 2, B> x) {
  using U = std::remove_const_t<T>;
  const auto& expert = mixture.expert;
  using ExpertT = std::remove_cvref_t<decltype(expert)>;
  expect_shape("expert_outputs", "x", x, {any_extent, mixture.in_dim()});
  const Index items = x.extent(0), experts = mixture.experts(), out = mixture.out_dim();
  if constexpr (detail_::hook::expert::validate<ExpertT, U, B>()) expert.validate(params.expert, experts);
  const auto here = ctx.here();
  Tensor<U, 3, B> u(items, experts, out);
  auto mark = ctx.mark();
  auto offsets = ctx.template scratch<Index>(experts + 1), rows = ctx.template scratch<Index>(items * experts);
  auto z = ctx.template scratch<U>(experts, items, out);
  B::for_each(ctx, offsets.size(), functor::EvenOffsets<B>{items, offsets});
  B::for_each(ctx, rows.size(), functor::EveryItem<B>{items, rows});
  infer_expert<U, B>(expert, ctx, params.expert, {offsets, rows, rows.size()}, x, z.as(rows.size(), out));
  B::for_rows(ctx, rows.size(), functor::ByItem<U, B>{z, u});
  return u;
}

/// Returns the outputs of the experts that the gate picked, sorted by expert (in slot order). The function
/// metric::experts_by_norm takes these outputs.
///
///     z[s] = expert_e(x[n]) for slot s of expert e and item n                                           (2)
///
/// @param params  parameters of the mixture
/// @param plan    the picks of each item: `saved.plan` of a forward pass of x
/// @param x [N, in_dim] in
/// @return [S, out_dim]; rows past the last slot in use are not written
/// @throws ArgumentError unless x is [N, in_dim] with the N of the plan, and the expert accepts the shapes of its
///         parameters
/// @cost   the experts' work in an inference
template <class M, class PlanT, class T, class B>
Tensor<std::remove_const_t<T>, 2, B> slot_outputs(typename B::Context& ctx, const M& mixture,
                                                  const Params<M, std::remove_const_t<T>, B>& params, const PlanT& plan,
                                                  View<T, 2, B> x) {
  using U = std::remove_const_t<T>;
  const auto& expert = mixture.expert;
  using ExpertT = std::remove_cvref_t<decltype(expert)>;
  expect_shape("slot_outputs", "x", x, {plan.items(), mixture.in_dim()});
  if constexpr (detail_::hook::expert::validate<ExpertT, U, B>()) expert.validate(params.expert, plan.experts());
  const auto here = ctx.here();
  const auto in = plan.dispatched(x);
  Tensor<U, 2, B> z(in.groups.slots, mixture.out_dim());
  infer_expert<U, B>(expert, ctx, params.expert, in.groups, in.x, z);
  return z;
}

namespace functor {

/// Writes the item that each slot s (one row of work of an expert) reads: rows[s] = s mod N, so that every expert reads
/// all N items in order.
template <class B>
struct EveryItem {
  Index items;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index s) const { rows(s) = s % items; }
};
/// Reorders expert outputs from [E, N, D] to [N, E, D]: u[n,e,:] = z[e,n,:]. Call i = n · E + e copies row (n, e).
template <class T, class B>
struct ByItem {
  View<const T, 3, B> z;
  View<T, 3, B> u;
  GATEFOLD_HD void operator()(const auto& lanes, Index i) const {
    const Index n = i / u.extent(1), e = i % u.extent(1);
    for (Index d = lanes.lane; d < u.extent(2); d += lanes.size) u(n, e, d) = z(e, n, d);
  }
};

}  // namespace functor

}  // namespace gatefold
