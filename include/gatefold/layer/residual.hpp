#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/batch_stamp.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

namespace gatefold {

/// A layer with a residual connection: an update rule combines the items x with the output u of a branch, for example
/// to y = x + u (paper 001).
///
///     y, carry ← rule(x, carry; u),   u = branch                                                        (1)
///
/// The rule evaluates the branch, at x or at another point. The carry is the state of the rule, for example momentum.
/// If the rule has model dimension 0, it is filled from the branch.
/// @param x      [N, D] in items; y [N, D] out (must not be x)
/// @param carry  the state of the rule, in/out; dcarry is in/out in backward
/// @param saved  the values that the rule keeps, and the saved values of the branch for each evaluation
/// @throws ArgumentError unless in_dim of the branch equals its out_dim (otherwise use NoResidual) and shapes fit
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

  GATEFOLD_LAYER_CALLS;
  GATEFOLD_TYPES_OF_BRANCH(BranchT, branch)

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    if constexpr (detail_::policy::parts_fit<Residual, T, B>()) {
      validate_dims();
      return {init_params<T, B>(filled_rule(), ctx, seed.fork(0)), init_params<T, B>(branch, ctx, seed.fork(1))};
    } else {
      return {};
    }
  }
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
    validate_dims();
    if constexpr (detail_::hook::rule::validate<RuleT, T, B>()) filled_rule().validate(p.rule, items, in_dim(), carry);
    gatefold::validate(branch, p.branch, items, extra);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, NonDeduced<Carry<T, B>>& carry,
               Out<T, 2, B> y, Saved<T, B>& saved, const NonDeduced<Extra<T, B>>& extra = {}) const {
    const auto here = ctx.here();
    expect_forward("Residual.forward", *this, p, x, "y", y, carry, extra);
    update::enter_pass(carry, "Residual.forward", &p, x, y);
    saved.batch.take(x);
    auto f = make_evaluation<T, B>([&](View<const T, 2, B> point, View<T, 2, B> u, int call, const auto& step) {
      branch.forward(ctx, p.branch, point, u, saved.calls[place_of("Residual.forward", call)],
                     call == 0 ? extra : without_auxiliary(extra), step);
    });
    filled_rule().forward(ctx, p.rule, x, carry, f, y, saved.rule);
    update::leave_pass(carry);
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, NonDeduced<Carry<T, B>>& carry,
             Out<T, 2, B> y, const NonDeduced<Extra<T, B>>& extra = {}) const {
    const auto here = ctx.here();
    expect_forward("Residual.forward", *this, p, x, "y", y, carry, extra);
    update::enter_pass(carry, "Residual.infer", &p, x, y);
    auto f = make_evaluation<T, B>([&](View<const T, 2, B> point, View<T, 2, B> u, int call, const auto& step) {
      infer_branch<T, B>(branch, ctx, p.branch, point, u, call == 0 ? extra : without_auxiliary(extra), step);
    });
    infer_rule<T, B>(filled_rule(), ctx, p.rule, x, carry, f, y);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                In<T, 2, B> dy, NonDeduced<Carry<T, B>>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads,
                const NonDeduced<Extra<T, B>>& extra, NonDeduced<ExtraGrad<T, B>>& dextra) const {
    const auto here = ctx.here();
    expect_backward("Residual.backward", *this, p, x, dy, dx, grads, dcarry, extra);
    auto df = [&](View<const T, 2, B> point, View<const T, 2, B> du, View<T, 2, B> dpoint, int call) {
      branch.backward(ctx, p.branch, point, saved.calls[place_of("Residual.backward", call)], du, dpoint, grads.branch,
                      call == 0 ? extra : without_auxiliary(extra), dextra);
    };
    saved.batch.expect_same("Residual.backward", x);
    filled_rule().backward(ctx, p.rule, x, saved.rule, df, dy, dcarry, dx, grads.rule);
  }

  /// Returns the attention trace (the tensors of an attention that a gate can read) of the branch, from its first
  /// evaluation. This function exists only if the branch has a trace.
  template <class T, class B, class Of = BranchT>
  auto trace(const Params<T, B>& p, const Saved<T, B>& saved) const
      -> decltype(std::declval<const Of&>().trace(p.branch, saved.calls[0])) {
    return branch.trace(p.branch, saved.calls[0]);
  }

 private:
  /// Returns the index in Saved.calls for evaluation number `call` of the branch.
  /// @throws ArgumentError if the update rule declares fewer evaluations
  static std::size_t place_of(const char* where, int call) {
    constexpr int evaluations = detail_::hook::rule::evaluations<RuleT>();
    expect(call >= 0 && call < evaluations, where, "call of the branch",
           Joined{"less than ", evaluations, " (the rule's `static constexpr int evaluations`)"}, call);
    return static_cast<std::size_t>(call);
  }
  RuleT filled_rule() const { return with_model_dim(rule, in_dim()); }
  void validate_dims() const {
    expect(in_dim() == out_dim(), "Residual", "branch.out_dim",
           Joined{in_dim(), " (its in_dim; NoResidual allows others)"}, out_dim());
  }
};
template <class R, class Br>
Residual(R, Br) -> Residual<R, Br>;

}  // namespace gatefold
