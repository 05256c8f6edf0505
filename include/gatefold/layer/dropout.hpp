#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/backend/drop.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

/// Applies dropout to the output of a branch: sets each value to 0 with probability `rate`, and scales up the other
/// values.
///
///     u = ξ ⊙ branch(x) / (1 − rate),   ξ[n,d] = 0 with probability rate, else 1                        (1)
///
/// Source: Srivastava et al. 2014, "Dropout", JMLR 15; as in torch.nn.Dropout, values are scaled in training, not in
/// evaluation. Without noise in the extra inputs, or with rate 0, u has the same bits as branch(x). If an update rule
/// evaluates the branch twice, both evaluations drop the same values. Parameters have the names of the branch's
/// parameters.
/// @param x [N, D] in, u [N, out_dim] out
/// @param extra  `.noise`: the random numbers, different for each layer of a stack. `.branch`: the extra inputs of the
///         branch. Parts of a model that get the same Random draw the same numbers
/// @param saved  the saved values of the branch; ξ is not saved, because backward draws it again
/// @throws ArgumentError unless 0 <= rate < 1. Trainer.step and ThreeStage.step also throw it if there is no noise and
///         rate is not 0
/// @cost   N·out_dim random numbers in forward, and again in backward
/// @order  element (n, d) of ξ uses random number n·out_dim + d of the stream, on any number of threads
template <class BranchT>
struct Dropout {
  double rate = 0.1;
  BranchT branch;

  GATEFOLD_PARAMS_OF(branch, BranchT)
  template <class T, class B>
  using Saved = gatefold::Saved<BranchT, T, B>;
  template <class T, class B>
  using Extra = NoisyExtra<gatefold::Extra<BranchT, T, B>>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<BranchT, T, B>;

  Index in_dim() const { return branch.in_dim(); }
  Index out_dim() const { return branch.out_dim(); }

  GATEFOLD_INIT_OF(Dropout, branch)
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    extra.noise.expect_given("Dropout", rate);
    gatefold::validate(branch, p.branch, items, extra.branch);
  }

  GATEFOLD_BRANCH_PASSES(Dropout)
  GATEFOLD_TRACE_OF_BRANCH(BranchT, saved)

 private:
  GATEFOLD_RUN_BRANCH {
    if (!drops(extra.noise)) return run_branch<T, B>(branch, ctx, p.branch, x, u, keep, extra.branch, step);
    run_branch<T, B>(branch, ctx, p.branch, x, u, keep, extra.branch);
    for_rows(ctx, u, rows<T, B>(extra.noise, u, u), step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    if (!drops(extra.noise))
      return run_branch_backward<T, B>(branch, ctx, p.branch, x, saved, du, dx, grads.branch, extra.branch, dextra);
    auto mark = ctx.mark();
    auto kept = ctx.template scratch<T>(du.extent(0), du.extent(1));
    B::for_rows(ctx, du.extent(0), rows<T, B>(extra.noise, du, kept));
    run_branch_backward<T, B>(branch, ctx, p.branch, x, saved, kept, dx, grads.branch, extra.branch, dextra);
  }
  void expect_options() const { expect(0 <= rate && rate < 1, "Dropout", "rate", "0 <= rate < 1", rate); }
  bool drops(const Noise& noise) const { return rate > 0 && noise.random.has_value(); }
  template <class T, class B>
  functor::DropRows<T, B> rows(const Noise& noise, In<T, 2, B> from, Out<T, 2, B> to) const {
    return {{*noise.random, rate}, from, to};
  }
};
template <class Br>
Dropout(double, Br) -> Dropout<Br>;

}  // namespace gatefold
