#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/policy/policy.hpp"

/// Defines what an update rule is. An update rule computes the output y of a layer from its input x and the output u of
/// its branch (for example a mixture of experts); the simplest rule is y = x + u. The rule calls the branch itself,
/// through the argument f:
///
///     forward (ctx, params, x, carry, f, y, saved) const;                // f(point, u, call) writes u = u(point)
///     backward(ctx, params, x, saved, df, dy, dcarry, dx, grads) const;  // df(point, du, dpoint, call) adds to dpoint
///
/// A rule can evaluate the branch at any point and more than once. `static constexpr int evaluations` is the number of
/// evaluations, and `call` is the index of an evaluation, from 0. The Carry of the rule is passed from layer to layer
/// and updated in place. `begin(ctx, items, dim, carry)` sets the initial carry. On entry to backward, dcarry is the
/// gradient of the carry after the layer; on return, it is the gradient of the carry before the layer.
///
/// Sign: u is the output of the mixture of experts; f in paper 001, eq. (7), is −u.
///
/// If a rule uses u in an elementwise step, it passes the step to f as a last argument, f(point, u, call, step). This
/// saves a pass over memory. Optional members are in policy/hooks.hpp.
namespace gatefold {

/// The functor f that an update rule receives to evaluate its branch. run(point, u, call, step) computes the branch
/// output u = u(point), and calls step(at, i) for every element i of u, if possible while the element is in the cache.
/// `step` may access only element i of its arrays, and only through `at`, because other rows of u may not be computed
/// yet. On a device, u[i] may still be in a register.
template <class T, class B, class Run>
struct Evaluation {
  Run run;
  template <class Step = functor::NoStep<T>>
  void operator()(View<const T, 2, B> point, View<T, 2, B> u, int call, const Step& step = {}) const {
    run(point, u, call, step);
  }
};
template <class T, class B, class Run>
Evaluation<T, B, Run> make_evaluation(const Run& run) {
  return {run};
}

/// Applies an update rule for inference, without keeping values for backward. If the rule has no `infer`, calls its
/// `forward` and discards the saved values.
template <class T, class B, class U, class F>
void infer_rule(const U& rule, typename B::Context& ctx, const Params<U, T, B>& p, In<T, 2, B> x,
                NonDeduced<Carry<U, T, B>>& carry, F&& f, Out<T, 2, B> y) {
  if constexpr (detail_::hook::rule::infer<U, T, B>()) {
    rule.infer(ctx, p, x, carry, f, y);
  } else {
    auto discarded = ctx.template acquire<Saved<U, T, B>>();
    rule.forward(ctx, p, x, carry, f, y, *discarded);
  }
}

namespace detail_::policy {

template <class U>
concept IsOptimizer = requires {
  typename U::IsOptimizer;
};
template <class U>
concept RuleBegin = !detail_::named::Carry<U>() || detail_::named::begin<U>();
template <class U, class T, class B, class Given = Params<U, T, B>>
concept RuleForward = requires(const U rule, Probe<T, B> a, const Given& params, Carry<U, T, B>& carry,
                               ProbeCall<T, B> f, Saved<U, T, B>& saved) {
  rule.forward(a.ctx, params, a.in, carry, f, a.out, saved);
};
template <class U, class T, class B, class Given = Params<U, T, B>>
concept RuleBackward = requires(const U rule, Probe<T, B> a, const Given& params, Carry<U, T, B>& dcarry,
                                ProbeCall<T, B> df, const Saved<U, T, B>& saved, Params<U, T, B>& grads) {
  rule.backward(a.ctx, params, a.in, saved, df, a.in, dcarry, a.out, grads);
};

template <class U, class T, class B>
concept UpdateRule = HasInit<U, T, B> && RuleBegin<U> && RuleForward<U, T, B> && RuleBackward<U, T, B>;

/// Returns true if U is an update rule. If it is not, a static_assert names the first unmet requirement.
template <class U, class T, class B>
constexpr bool check_rule() {
  detail_::hook::rule::all<U, T, B>();
  GATEFOLD_EXPECT((HasInit<U, T, B> && RuleBegin<U>),
                  "gatefold: an update rule with Params needs init<T, B>(ctx, seed) const, one with Carry needs "
                  "begin(ctx, items, dim, carry) const; see docs/how-to/extending.md#rule")
  GATEFOLD_EXPECT(
      (RuleForward<U, T, B>),
      "gatefold: an update rule needs forward(ctx, params, x, carry, f, y, saved) const, with params as const "
      "Params<T, B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending.md#rule")
  GATEFOLD_EXPECT((RuleBackward<U, T, B>),
                  "gatefold: an update rule needs backward(ctx, params, x, saved, df, dy, dcarry, dx, grads) const; "
                  "see docs/how-to/extending.md#rule")
  GATEFOLD_EXPECT((!RuleForward<U, T, B, Foreign> && !RuleBackward<U, T, B, Foreign>),
                  "gatefold: forward and backward of an update rule must take params as const Params<T, B>&, or as "
                  "const Nothing<T, B>& if the rule has no parameters. const auto& would also accept the parameters of "
                  "another model; see docs/how-to/extending.md#what-all-policies-share")
  return true;
}

}  // namespace detail_::policy
}  // namespace gatefold
