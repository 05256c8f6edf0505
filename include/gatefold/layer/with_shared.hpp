#pragma once

#include <type_traits>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

/// Adds a shared expert, which is applied to every item, to a branch: `WithShared{Mixture{gate, expert},
/// Mlp<Gelu>{…}}`.
///
///     u(x) = branch(x) + weight · shared(x)                                                             (1)
///
/// Source: the shared experts of DeepSeekMoE, Dai et al. 2024, arXiv:2401.06066, eq. (9). For several shared experts,
/// use one wider expert, which can compute their sum. Extra inputs go to the branch. If the extra inputs mark padding,
/// branch(x) is 0 for padding. The shared expert treats padding like other items, so padding contributes to the
/// gradient of the shared expert. While the branch waits for other shards (dist::ExpertParallel), the shared expert is
/// computed.
/// @param x [N, in_dim] in, u [N, out_dim] out
/// @throws ArgumentError unless branch and shared expert have the same in_dim and out_dim, and weight is finite
/// @cost   the costs of the branch and of the shared expert, on N items
template <class BranchT, class SharedT>
struct WithShared {
  static_assert(detail_::policy::in_order<WithShared>);
  BranchT branch;
  SharedT shared;
  double weight = 1;

  template <class T, class B>
  struct Params {
    gatefold::Params<BranchT, T, B> branch;
    gatefold::Params<OneExpert<SharedT>, T, B> shared;
    GATEFOLD_PACK(branch, shared)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<BranchT, T, B> branch;
    gatefold::Saved<OneExpert<SharedT>, T, B> shared;
    void mixtures(auto&& f) const { for_each_mixture(branch, f); }
  };

  GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)

  GATEFOLD_INIT_OF(WithShared, branch, one())
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    gatefold::validate(branch, p.branch, items, extra);
    one().validate(p.shared, items, Nothing<T, B>{});
  }

  GATEFOLD_BRANCH_PASSES(WithShared)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    auto from_shared = ctx.template scratch<T>(x.extent(0), out_dim());
    const auto run_shared = [&] {
      run_branch<T, B>(one(), ctx, p.shared, x, from_shared, part_of(keep, &Saved<T, B>::shared), Nothing<T, B>{});
    };
    if constexpr (std::is_null_pointer_v<Keep>) {
      infer_overlapping<T, B>(branch, ctx, p.branch, x, u, extra, run_shared);
    } else {
      forward_overlapping<T, B>(branch, ctx, p.branch, x, u, keep->branch, extra, run_shared);
    }
    add_scaled(ctx, T(weight), from_shared, u);
    run_step(ctx, u, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    auto mark = ctx.mark();
    auto dshared = ctx.template scratch<T>(x.extent(0), out_dim());
    copy_scaled(ctx, T(weight), du, dshared);
    backward_overlapping<T, B>(branch, ctx, p.branch, x, saved.branch, du, dx, grads.branch, extra, dextra, [&] {
      Nothing<T, B> none;
      run_branch_backward<T, B>(one(), ctx, p.shared, x, saved.shared, dshared, dx, grads.shared, none, none);
    });
  }
  OneExpert<SharedT> one() const { return {shared}; }
  void expect_options() const {
    expect(shared.in_dim() == in_dim(), "WithShared", "shared.in_dim", Joined{in_dim(), " (from branch.in_dim)"},
           shared.in_dim());
    expect_finite("WithShared", "weight", weight);
    expect(shared.out_dim() == out_dim(), "WithShared", "shared.out_dim", Joined{out_dim(), " (from branch.out_dim)"},
           shared.out_dim());
  }
};
template <class Br, class S>
WithShared(Br, S) -> WithShared<Br, S>;
template <class Br, class S>
WithShared(Br, S, double) -> WithShared<Br, S>;

}  // namespace gatefold
