#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// A branch that sends every item to one expert, without a gate. With `Linear` it is an ordinary linear layer, with
/// `Mlp<Gelu>` a dense feed-forward branch. The first extent of its parameters, the number of experts, is 1.
///
///     u[n] = expert(x[n])                                                                               (1)
///
/// @param x [N, in_dim] in, u [N, out_dim] out
/// @param extra  the Noise, if the expert draws random numbers (HiddenDropout); otherwise there are no extra inputs
/// @throws ArgumentError if a shape is wrong
template <class ExpertT>
struct OneExpert {
  ExpertT expert;

  GATEFOLD_PARAMS_OF(expert, ExpertT)
  template <class T, class B>
  using Saved = gatefold::Saved<ExpertT, T, B>;
  template <class T, class B>
  using Extra = detail_::passes::NoiseOf<ExpertT, T, B>;

  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return expert.out_dim(); }

  GATEFOLD_INIT(OneExpert) { return {expert.template init<T, B>(ctx, 1, seed)}; }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const NonDeduced<Extra<T, B>>& extra) const {
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>()) drawing(extra).validate(p.expert, Index(1));
  }

  GATEFOLD_BRANCH_PASSES(OneExpert)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    run_expert<T, B>(drawing(extra), ctx, p.expert, one_group(ctx, x.extent(0)), x, u, keep);
    run_step(ctx, u, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    auto mark = ctx.mark();
    auto dslots = ctx.template scratch<T>(x.extent(0), in_dim());
    drawing(extra).backward(ctx, p.expert, one_group(ctx, x.extent(0)), x, saved, du, dslots, grads.expert);
    add(ctx, dslots, dx);
  }
  ExpertT drawing(const auto& extra) const { return detail_::passes::drawing(expert, extra); }
};
template <class E>
OneExpert(E) -> OneExpert<E>;

}  // namespace gatefold
