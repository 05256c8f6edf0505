#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/tensor/sampled_hash.hpp"
#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

namespace gatefold {

/// A layer with a residual connection: an update rule combines the items x with the output u of a branch, for example
/// to y = x + u (paper 001).
///
///     y, carry ← rule(x, carry; u),   u = branch                                                        (1)
///
/// The rule evaluates the branch, at x or at another point. The carry is the state of the rule, for example momentum.
/// If the rule has model dimension 0, the dimension is filled from the branch.
/// @param x      [N, D] in items; y [N, D] out (must not be x)
/// @param carry  the state of the rule, in/out; dcarry is in/out in backward
/// @param saved  the values that the rule keeps, and the saved values of the branch for each evaluation
/// @throws ArgumentError if in_dim of the branch differs from its out_dim (then use NoResidual), or a shape is wrong
/// @cost   rule.evaluations times the cost of the branch, plus the cost of the rule
template <class RuleT, class BranchT>
struct Residual {
  static_assert(detail_::policy::in_order<Residual>);
  RuleT rule;
  BranchT branch;

  template <class T, class B>
  struct Params {
    gatefold::Params<RuleT, T, B> rule;
    gatefold::Params<BranchT, T, B> branch;
    GATEFOLD_PACK(rule, branch)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<RuleT, T, B> rule;
    std::array<gatefold::Saved<BranchT, T, B>, static_cast<std::size_t>(detail_::hook::rule::evaluations<RuleT>())>
        calls;
    BatchStamp batch;
    void mixtures(auto&& f) const {
      for (const auto& call : calls) for_each_mixture(call, f);
    }
  };
  template <class T, class B>
  using Carry = gatefold::Carry<RuleT, T, B>;

  GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)

  GATEFOLD_INIT_OF(Residual, filled_rule(), branch)
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>&, Index items, NonDeduced<Carry<T, B>>& carry) const {
    const auto here = ctx.here();
    expect(items >= 0, "Residual.begin", "items", "at least 0", items);
    if constexpr (detail_::hook::rule::begin<RuleT, T, B>()) rule.begin(ctx, items, out_dim(), carry);
    update::begin_pass(carry);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    if constexpr (detail_::hook::rule::validate<RuleT, T, B>()) filled_rule().validate(p.rule, items, in_dim(), carry);
    gatefold::validate(branch, p.branch, items, extra);
  }

  GATEFOLD_LAYER_PASSES(Residual)
  GATEFOLD_TRACE_OF_BRANCH(BranchT, saved.calls[0])

 private:
  GATEFOLD_RUN_LAYER {
    constexpr bool keeps = !std::is_null_pointer_v<Keep>;
    update::enter_pass(carry, keeps ? "Residual.forward" : "Residual.infer", &p, x, y);
    auto f = make_evaluation<T, B>([&](View<const T, 2, B> point, View<T, 2, B> u, int call, const auto& step) {
      const Extra<T, B> of_call = call == 0 ? extra : without_auxiliary(extra);
      if constexpr (keeps) {
        auto& saved = keep->calls[place_of("Residual.forward", call)];
        run_branch<T, B>(branch, ctx, p.branch, point, u, &saved, of_call, step);
      } else {
        run_branch<T, B>(branch, ctx, p.branch, point, u, keep, of_call, step);
      }
    });
    if constexpr (keeps) {
      keep->batch.take(x);
      filled_rule().forward(ctx, p.rule, x, carry, f, y, keep->rule);
      update::leave_pass(carry);
    } else {
      infer_rule<T, B>(filled_rule(), ctx, p.rule, x, carry, f, y);
    }
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    auto df = [&](View<const T, 2, B> point, View<const T, 2, B> du, View<T, 2, B> dpoint, int call) {
      const auto& of_call = saved.calls[place_of("Residual.backward", call)];
      run_branch_backward<T, B>(branch, ctx, p.branch, point, of_call, du, dpoint, grads.branch,
                                call == 0 ? extra : without_auxiliary(extra), dextra);
    };
    saved.batch.expect_same("Residual.backward", x);
    filled_rule().backward(ctx, p.rule, x, saved.rule, df, dy, dcarry, dx, grads.rule);
  }
  /// Returns the index in Saved.calls for evaluation number `call` of the branch.
  /// @throws ArgumentError if the update rule declares fewer evaluations
  static std::size_t place_of(const char* where, int call) {
    constexpr int evaluations = detail_::hook::rule::evaluations<RuleT>();
    expect(call >= 0 && call < evaluations, where, "call of the branch",
           Joined{"less than ", evaluations, " (the rule's `static constexpr int evaluations`)"}, call);
    return static_cast<std::size_t>(call);
  }
  RuleT filled_rule() const { return with_model_dim(rule, in_dim()); }
  void expect_options() const {
    expect(in_dim() == out_dim(), "Residual", "branch.out_dim",
           Joined{in_dim(), " (its in_dim; NoResidual allows others)"}, out_dim());
  }
};
template <class R, class Br>
Residual(R, Br) -> Residual<R, Br>;

}  // namespace gatefold
