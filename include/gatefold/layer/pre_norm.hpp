#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/one_expert.hpp"

namespace gatefold {

/// Normalises the items and then runs a branch on them (pre-norm).
///
///     u(x) = branch(norm(x))                                                                            (1)
///
/// The norm is an expert or a branch (LayerNorm, RmsNorm). If the norm has model dimension 0, the dimension is filled
/// from the branch. Extra inputs, and the functor `step` of an update rule, go to the branch. The norm treats padding
/// like other items. Padding can contribute to the gradient of the norm's parameters. It does not contribute if du of
/// padding is 0 and the values of padding are finite.
/// @param x [N, D] in, u [N, out_dim] out
/// @throws ArgumentError if norm and branch have different widths, or a shape or an option is invalid
/// @cost   the norm and the branch; keeps the normalised items [N, D]
template <class NormT, class BranchT>
struct PreNorm {
  NormT norm;
  BranchT branch;

  template <class T, class B>
  using Norm = AsBranch<NormT, T, B>;
  template <class T, class B>
  using Branch = BranchT;

  GATEFOLD_TWO_PARTS(norm, Norm, branch, Branch, normed)

  GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)

  GATEFOLD_INIT_OF(PreNorm, filled_norm<T, B>(), branch)
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    gatefold::validate(filled_norm<T, B>(), p.norm, items, Nothing<T, B>{});
    gatefold::validate(branch, p.branch, items, extra);
  }

  GATEFOLD_BRANCH_PASSES(PreNorm)
  GATEFOLD_TRACE_OF_BRANCH(BranchT, saved.branch)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    auto normed = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::normed, x.extent(0), x.extent(1));
    run_branch<T, B>(filled_norm<T, B>(), ctx, p.norm, x, normed, part_of(keep, &Saved<T, B>::norm), Nothing<T, B>{});
    run_branch<T, B>(branch, ctx, p.branch, normed, u, part_of(keep, &Saved<T, B>::branch), extra, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    expect_shape("PreNorm.backward", "saved.normed", saved.normed, {x.extent(0), in_dim()});
    auto mark = ctx.mark();
    auto dnormed = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, dnormed, 0);
    Nothing<T, B> none;
    run_branch_backward<T, B>(branch, ctx, p.branch, saved.normed, saved.branch, du, dnormed, grads.branch, extra,
                              dextra);
    run_branch_backward<T, B>(filled_norm<T, B>(), ctx, p.norm, x, saved.norm, dnormed, dx, grads.norm, none, none);
  }
  template <class T, class B>
  Norm<T, B> filled_norm() const {
    return as_branch<T, B>(with_model_dim(norm, in_dim()));
  }
};
template <class N, class Br>
PreNorm(N, Br) -> PreNorm<N, Br>;

}  // namespace gatefold
