#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/layer.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

/// Makes a layer from a branch without a residual connection: the output is y = u(x) instead of y = x + u(x). y may
/// have a different width than x.
///
///     y = u(x)                                                                                          (1)
///
/// @param x [N, in_dim] in (or ids [N]), y [N, out_dim] out
/// @throws ArgumentError if an option of the branch is invalid, or if a shape is not as above
/// @cost   the cost of the branch
template <class BranchT>
struct NoResidual {
  BranchT branch;

  GATEFOLD_PARAMS_OF(branch, BranchT)
  template <class T, class B>
  struct Saved {
    gatefold::Saved<BranchT, T, B> branch;
    BatchStamp batch;
    void mixtures(auto&& f) const { for_each_mixture(branch, f); }
  };
  template <class T, class B>
  using Items = gatefold::Items<BranchT, T, B>;

  GATEFOLD_LAYER_CALLS;
  GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)

  GATEFOLD_INIT_OF(NoResidual, branch)
  template <class T, class B>
  void begin(typename B::Context&, const Params<T, B>&, Index, Nothing<T, B>&) const {}
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Nothing<T, B>&, const NonDeduced<Extra<T, B>>& extra) const {
    gatefold::validate(branch, p.branch, items, extra);
  }

  GATEFOLD_CHECKED_HERE(NoResidual)
  // The branch checks the arguments of forward and infer, so that messages name the branch.
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, NonDeduced<Items<T, B>> x, Nothing<T, B>&,
               Out<T, 2, B> y, Saved<T, B>& saved, const NonDeduced<Extra<T, B>>& extra = {}) const {
    branch.forward(ctx, p.branch, x, y, saved.branch, extra, functor::NoStep<T>{});
    saved.batch.take(x);
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, NonDeduced<Items<T, B>> x, Nothing<T, B>&, Out<T, 2, B> y,
             const NonDeduced<Extra<T, B>>& extra = {}) const {
    infer_branch<T, B>(branch, ctx, p.branch, x, y, extra);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, NonDeduced<Items<T, B>> x, const Saved<T, B>& saved,
                In<T, 2, B> dy, Nothing<T, B>& dcarry, NonDeduced<ItemsGrad<BranchT, T, B>> dx, Params<T, B>& grads,
                const NonDeduced<Extra<T, B>>& extra, NonDeduced<ExtraGrad<T, B>>& dextra) const {
    const auto here = ctx.here();
    expect_backward("NoResidual.backward", *this, p, x, dy, dx, grads, Nothing<T, B>{}, extra);
    run_backward<T, B>(ctx, p, x, saved, dy, dcarry, dx, grads, extra, dextra);
  }
  GATEFOLD_TRACE_OF_BRANCH(BranchT, saved.branch)

 private:
  GATEFOLD_RUN_LAYER {
    if constexpr (!std::is_null_pointer_v<Keep>) keep->batch.take(x);
    run_branch<T, B>(branch, ctx, p.branch, x, y, part_of(keep, &Saved<T, B>::branch), extra);
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    saved.batch.expect_same("NoResidual.backward", x);
    run_branch_backward<T, B>(branch, ctx, p.branch, x, saved.branch, dy, dx, grads.branch, extra, dextra);
  }
};
template <class Br>
NoResidual(Br) -> NoResidual<Br>;

}  // namespace gatefold
