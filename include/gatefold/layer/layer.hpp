#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/policy/probe.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

/// Branches and layers. Both map items [N, in_dim] to items [N, out_dim] and have init(ctx, seed). A branch or layer
/// that reads ids [N] in [0, in_dim), as an Embedding does, has a nested type `Items`; its dx is Nothing.
///
/// A branch is a function of the items. The update rule around it may pass an elementwise step for each value of u:
///
///     forward (ctx, params, x, u, saved, extra = {}, step = {}) const;      // writes u, then step(at, i) for every i
///     backward(ctx, params, x, saved, du, dx, grads, extra, dextra) const;  // adds to dx and grads
///
/// with `class Step = functor::NoStep<T>`. A branch that cannot run the step while u is in the cache ends with
/// run_step(ctx, u, step).
///
/// A layer has a carry, a state that travels through depth:
///
///     begin   (ctx, params, items, carry) const;                            // initialises the carry
///     forward (ctx, params, x, carry, y, saved, extra = {}) const;          // writes y, updates carry
///     backward(ctx, params, x, saved, dy, dcarry, dx, grads, extra, dextra) const;
///
/// Optional members of both are in policy/hooks.hpp. A branch or an expert is accepted wherever a layer is expected
/// (Stack, Chain, PerToken, Trainer, the checks). It is treated as NoResidual{branch} or NoResidual{OneExpert{expert}}.

// The messages for calls of a member of a layer or branch with too few or too many arguments. A struct of the library
// has one line, GATEFOLD_LAYER_CALLS or GATEFOLD_BRANCH_CALLS.
#define GATEFOLD_WRONG_COUNT(function, fewest, most, sentence)                                          \
  template <class... A, class = std::enable_if_t<(sizeof...(A) < (fewest)) || (sizeof...(A) > (most))>> \
  void function(::gatefold::detail_::policy::Misuse<sentence>, A&&...) const
#define GATEFOLD_WRONG_INIT                                                                                           \
  template <class T = float, class B = void, class... A>                                                              \
  void init(                                                                                                          \
      ::gatefold::detail_::policy::Misuse<                                                                            \
          "gatefold: init takes the element type and the backend as template arguments: model.init<float, Cpu>(ctx, " \
          "Seed{1}); see docs/reference/functions.md">,                                                               \
      A&&...) const
#define GATEFOLD_LAYER_CALLS                                                                                           \
  GATEFOLD_WRONG_INIT;                                                                                                 \
  GATEFOLD_WRONG_COUNT(begin, 3, 3,                                                                                    \
                       "gatefold: begin of a layer takes (ctx, params, items, carry); items is the number of items; "  \
                       "see docs/reference/functions.md");                                                             \
  GATEFOLD_WRONG_COUNT(                                                                                                \
      forward, 5, 6,                                                                                                   \
      "gatefold: forward of a layer takes (ctx, params, x, carry, y, saved), then extra if the layer has extra "       \
      "inputs; call begin first: Carry<L, T, B> carry; layer.begin(ctx, params, items, carry); see "                   \
      "docs/reference/functions.md");                                                                                  \
  GATEFOLD_WRONG_COUNT(                                                                                                \
      infer, 4, 5,                                                                                                     \
      "gatefold: infer of a layer takes (ctx, params, x, carry, y), then extra if the layer has extra inputs; call "   \
      "begin first: Carry<L, T, B> carry; layer.begin(ctx, params, items, carry); see "                                \
      "docs/reference/functions.md");                                                                                  \
  GATEFOLD_WRONG_COUNT(backward, 9, 9,                                                                                 \
                       "gatefold: the member backward of a layer also takes extra and dextra; without the adjoint of " \
                       "extra inputs call the free function backward(layer, ctx, params, x, saved, dy, dcarry, dx, "   \
                       "grads), with extra last if the layer has extra inputs; see "                                   \
                       "docs/reference/functions.md")
#define GATEFOLD_BRANCH_CALLS                                                                                          \
  GATEFOLD_WRONG_INIT;                                                                                                 \
  GATEFOLD_WRONG_COUNT(forward, 4, 6,                                                                                  \
                       "gatefold: forward of a branch takes (ctx, params, x, u, saved), then extra if the branch has " \
                       "extra inputs, then step if there is one; see "                                                 \
                       "docs/reference/functions.md");                                                                 \
  GATEFOLD_WRONG_COUNT(backward, 8, 8,                                                                                 \
                       "gatefold: the member backward of a branch also takes extra and dextra; without the adjoint "   \
                       "of extra inputs call the free function backward(branch, ctx, params, x, saved, du, dx, "       \
                       "grads), with extra last if the branch has extra inputs; see docs/reference/functions.md")

// forward and infer of a branch or layer as one text. Both check their arguments and call run<T, B>(ctx, params, x,
// [carry,] y, keep, extra, [step]). keep is &saved in forward and nullptr in infer; keep_or_scratch, part_of,
// run_branch and run_layer (below) take it.
#define GATEFOLD_BRANCH_PASSES(Branch)                                                                            \
  template <class T, class B, class Step = ::gatefold::functor::NoStep<T>>                                        \
  void forward(typename B::Context& ctx, const Params<T, B>& p,                                                   \
               ::gatefold::NonDeduced<::gatefold::Items<Branch, T, B>> x, ::gatefold::Out<T, 2, B> u,             \
               ::gatefold::NonDeduced<Saved<T, B>>& saved, const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}, \
               const Step& step = {}) const {                                                                     \
    const auto here = ctx.here();                                                                                 \
    ::gatefold::expect_forward(#Branch ".forward", *this, p, x, "u", u, extra);                                   \
    run<T, B>(ctx, p, x, u, &saved, extra, step);                                                                 \
  }                                                                                                               \
  template <class T, class B, class Step = ::gatefold::functor::NoStep<T>>                                        \
  void infer(typename B::Context& ctx, const Params<T, B>& p,                                                     \
             ::gatefold::NonDeduced<::gatefold::Items<Branch, T, B>> x, ::gatefold::Out<T, 2, B> u,               \
             const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}, const Step& step = {}) const {                \
    const auto here = ctx.here();                                                                                 \
    ::gatefold::expect_forward(#Branch ".forward", *this, p, x, "u", u, extra);                                   \
    run<T, B>(ctx, p, x, u, nullptr, extra, step);                                                                \
  }
#define GATEFOLD_LAYER_PASSES(Layer)                                                                                 \
  template <class T, class B>                                                                                        \
  void forward(typename B::Context& ctx, const Params<T, B>& p,                                                      \
               ::gatefold::NonDeduced<::gatefold::Items<Layer, T, B>> x, ::gatefold::NonDeduced<Carry<T, B>>& carry, \
               ::gatefold::Out<T, 2, B> y, ::gatefold::NonDeduced<Saved<T, B>>& saved,                               \
               const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}) const {                                        \
    const auto here = ctx.here();                                                                                    \
    ::gatefold::expect_forward(#Layer ".forward", *this, p, x, "y", y, carry, extra);                                \
    run<T, B>(ctx, p, x, carry, y, &saved, extra);                                                                   \
  }                                                                                                                  \
  template <class T, class B>                                                                                        \
  void infer(typename B::Context& ctx, const Params<T, B>& p,                                                        \
             ::gatefold::NonDeduced<::gatefold::Items<Layer, T, B>> x, ::gatefold::NonDeduced<Carry<T, B>>& carry,   \
             ::gatefold::Out<T, 2, B> y, const ::gatefold::NonDeduced<Extra<T, B>>& extra = {}) const {              \
    const auto here = ctx.here();                                                                                    \
    ::gatefold::expect_forward(#Layer ".forward", *this, p, x, "y", y, carry, extra);                                \
    run<T, B>(ctx, p, x, carry, y, nullptr, extra);                                                                  \
  }

namespace gatefold {

namespace detail_::policy {

template <class L>
concept HasDims = requires(const L layer) {
  { layer.in_dim() } -> std::convertible_to<Index>;
  { layer.out_dim() } -> std::convertible_to<Index>;
};
/// The arguments of forward of a branch. Given is the type of the parameters, or a wrong one; More are arguments after
/// extra.
template <class L, class T, class B, class Given, class... More>
concept BranchForwardOf = requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, const Given& params,
                                   Saved<L, T, B>& saved, const Extra<L, T, B>& extra, const More&... more) {
  branch.forward(a.ctx, params, x, a.out, saved, extra, more...);
};
template <class L, class T, class B>
concept BranchForward = BranchForwardOf<L, T, B, Params<L, T, B>, functor::NoStep<T>>;
template <class L, class T, class B, class Given = Params<L, T, B>>
concept BranchBackward = requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, ItemsGrad<L, T, B>& dx,
                                  const Given& params, const Saved<L, T, B>& saved, Params<L, T, B>& grads,
                                  const Extra<L, T, B>& extra, ExtraGrad<L, T, B>& dextra) {
  branch.backward(a.ctx, params, x, saved, a.in, dx, grads, extra, dextra);
};
template <class L, class T, class B>
concept Branch = HasDims<L> && HasInit<L, T, B> && BranchForward<L, T, B> && BranchBackward<L, T, B>;
/// A branch whose forward ends with extra or with saved.
template <class L, class T, class B>
concept ForwardWithoutStep = BranchForwardOf<L, T, B, Params<L, T, B>> ||
    requires(const L branch, Probe<T, B> a, const Items<L, T, B>& x, const Params<L, T, B>& params,
             Saved<L, T, B>& saved) {
  branch.forward(a.ctx, params, x, a.out, saved);
};

template <class L, class T, class B>
concept LayerBegin = requires(const L layer, Probe<T, B> a, const Params<L, T, B>& params, Carry<L, T, B>& carry) {
  layer.begin(a.ctx, params, Index(1), carry);
};
template <class L, class T, class B, class Given = Params<L, T, B>>
concept LayerForward = requires(const L layer, Probe<T, B> a, const Items<L, T, B>& x, const Given& params,
                                Carry<L, T, B>& carry, Saved<L, T, B>& saved, const Extra<L, T, B>& extra) {
  layer.forward(a.ctx, params, x, carry, a.out, saved, extra);
};
template <class L, class T, class B, class Given = Params<L, T, B>>
concept LayerBackward = requires(const L layer, Probe<T, B> a, const Items<L, T, B>& x, ItemsGrad<L, T, B>& dx,
                                 const Given& params, const Saved<L, T, B>& saved, Carry<L, T, B>& dcarry,
                                 Params<L, T, B>& grads, const Extra<L, T, B>& extra, ExtraGrad<L, T, B>& dextra) {
  layer.backward(a.ctx, params, x, saved, a.in, dcarry, dx, grads, extra, dextra);
};
template <class L, class T, class B>
concept Layer =
    HasDims<L> && HasInit<L, T, B> && LayerBegin<L, T, B> && LayerForward<L, T, B> && LayerBackward<L, T, B>;

/// Returns true for a branch. Otherwise the compiler reports the first unmet requirement in one sentence.
template <class L, class T, class B>
constexpr bool check_branch() {
  GATEFOLD_EXPECT((!Layer<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got a layer: write Residual{rule, PreNorm{norm, branch}}, with the "
                  "rule outside and the norm inside, or join layers with Chain{a, b}; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((!GateTypes<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got a gate: write Mixture{gate, expert}; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((!Expert<L, T, B> || Branch<L, T, B>),
                  "gatefold: expected a branch, got an expert: write OneExpert{expert} or Mixture{gate, expert}; "
                  "see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasDims<L>),
                  "gatefold: a branch needs Index in_dim() const and Index out_dim() const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasInit<L, T, B>),
                  "gatefold: a branch with Params needs Params<T, B> init<T, B>(ctx, seed) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((BranchForward<L, T, B> || !ForwardWithoutStep<L, T, B>),
                  "gatefold: forward of this branch lacks its last parameter, the step of the update rule: declare "
                  "forward(ctx, params, x, u, saved, extra, const auto& step) const and end it with run_step(ctx, u, "
                  "step); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((BranchForward<L, T, B>),
                  "gatefold: a branch needs forward(ctx, params, x, u, saved, extra, step) const, with params as "
                  "const Params<T, B>& (const Nothing<T, B>& without parameters); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((BranchBackward<L, T, B>),
                  "gatefold: a branch needs backward(ctx, params, x, saved, du, dx, grads, extra, dextra) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!BranchForwardOf<L, T, B, Params<L, T, B>, functor::NoStep<T>, Foreign>),
      "gatefold: forward of this branch takes any number of arguments (auto&&...), so it would drop the step, its last "
      "argument: declare const auto& step and end with run_step(ctx, u, step); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!BranchForwardOf<L, T, B, Foreign, functor::NoStep<T>> && !BranchBackward<L, T, B, Foreign>),
      "gatefold: forward and backward of a branch must take params as const Params<T, B>& (const Nothing<T, B>& "
      "without parameters), not as const auto&, which would accept the parameters of another model; see "
      "docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::branch::all<L, T, B>() && check_inside<L, T, B>();
}

/// Returns true for a layer. Otherwise the compiler reports the first unmet requirement in one sentence.
template <class L, class T, class B>
constexpr bool check_layer() {
  GATEFOLD_EXPECT((HasDims<L>),
                  "gatefold: a layer needs Index in_dim() const and Index out_dim() const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((HasInit<L, T, B>),
                  "gatefold: a layer with Params needs Params<T, B> init<T, B>(ctx, seed) const; see "
                  "docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((LayerBegin<L, T, B>),
                  "gatefold: a layer needs begin(ctx, params, items, carry) const, with params as const Params<T, B>& "
                  "(const Nothing<T, B>& without parameters); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT((LayerForward<L, T, B>),
                  "gatefold: a layer needs forward(ctx, params, x, carry, y, saved, extra) const, with params as const "
                  "Params<T, B>& (const Nothing<T, B>& without parameters); see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (LayerBackward<L, T, B>),
      "gatefold: a layer needs backward(ctx, params, x, saved, dy, dcarry, dx, grads, extra, dextra) const; "
      "see docs/how-to/extending.md#branch")
  GATEFOLD_EXPECT(
      (!LayerForward<L, T, B, Foreign> && !LayerBackward<L, T, B, Foreign>),
      "gatefold: forward and backward of a layer must take params as const Params<T, B>& (const Nothing<T, B>& "
      "without parameters), not as const auto&, which would accept the parameters of another model; see "
      "docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::layer::all<L, T, B>() && check_inside<L, T, B>();
}

/// Returns true for the experts of a mixture. Otherwise the compiler reports the first unmet requirement in one
/// sentence.
template <class E, class T, class B>
constexpr bool check_bank() {
  GATEFOLD_EXPECT(
      (Expert<E, T, B> || (!Branch<E, T, B> && !Layer<E, T, B>)),
      "gatefold: expected an expert, for example Linear or Mlp<Gelu>, got a branch or a layer: Mixture{gate, expert}, "
      "OneExpert{expert} and WithShared{branch, expert} take an expert; see docs/how-to/extending.md#expert")
  return check_expert<E, T, B>();
}

/// A layer that has an attention trace at any depth.
template <class L, class T, class B>
concept HasTrace = requires(const L layer, const Params<L, T, B>& params, const Saved<L, T, B>& saved) {
  layer.trace(params, saved);
};

/// Whether a branch or layer reads ids instead of rows.
template <class L, class T, class B>
inline constexpr bool reads_ids = std::is_same_v<Items<L, T, B>, View<const Index, 1, B>>;
/// Returns true for a part that reads rows. Otherwise the compiler reports it in one sentence.
template <class L, class T, class B>
constexpr bool check_reads_rows() {
  GATEFOLD_EXPECT((!reads_ids<L, T, B>),
                  "gatefold: this part reads ids, which only the first layer of a Chain may do: the other layers of a "
                  "Chain and the parts of a Stack, a PerToken and a Residual read rows; see "
                  "docs/how-to/extending.md#branch")
  return true;
}
template <class L, class T, class B>
constexpr bool check_items() {
  GATEFOLD_EXPECT((reads_ids<L, T, B> || std::is_same_v<Items<L, T, B>, View<const T, 2, B>>),
                  "gatefold: Items of a branch or layer must be View<const T, 2, B> (rows) or View<const Index, 1, B> "
                  "(ids); see docs/how-to/extending.md#branch")
  return true;
}

}  // namespace detail_::policy

/// Requires ids in [0, count). On a device, ids are not checked.
/// @throws ArgumentError that names the first other id and its position
/// @cost   two comparisons an id
template <class B>
void expect_ids(const char* where, const char* name, View<const Index, 1, B> ids, Index count) {
  if constexpr (B::is_host)
    for (Index n = 0; n < ids.extent(0); ++n)
      expect(0 <= ids(n) && ids(n) < count, where, Joined{name, "[", n, "]"}, Joined{"an id from 0 to ", count - 1},
             ids(n));
}

/// Checks everything about a layer in O(1): parameter shapes, options, extra inputs, the carry's shape. A stack calls
/// it for all its layers before it writes anything.
/// @throws ArgumentError that names the misfit
template <class L, template <class, class> class ParamsT, class T, class B>
void validate(const L& layer, const ParamsT<T, B>& params, Index items, const Carry<L, T, B>& carry,
              const Extra<L, T, B>& extra) {
  if constexpr (detail_::hook::layer::validate<L, T, B>()) layer.validate(params, items, carry, extra);
}
/// Checks a branch in the same way.
/// @throws ArgumentError that names the misfit
template <class L, template <class, class> class ParamsT, class T, class B>
void validate(const L& branch, const ParamsT<T, B>& params, Index items, const Extra<L, T, B>& extra) {
  if constexpr (detail_::hook::branch::validate<L, T, B>()) branch.validate(params, items, extra);
}

/// Requires items that a layer reads: rows [N, in_dim], or ids [N] in [0, in_dim). On a device, ids are not checked.
/// @throws ArgumentError
template <class L, class X>
void expect_items(const char* where, const L& layer, const X& x) {
  if constexpr (X::rank == 1) {
    expect_shape(where, "x", x, {any_extent});
    expect_ids(where, "x", x, layer.in_dim());
  } else {
    expect_shape(where, "x", x, {any_extent, layer.in_dim()});
  }
}
/// Requires the shapes of a forward: y [N, out_dim] for N items x. y must not overlap x, because backward reads x.
/// @throws ArgumentError
template <class L, class X, class Y>
void expect_forward_shapes(const char* where, const L& layer, const X& x, const char* y_name, const Y& y) {
  expect_items(where, layer, x);
  expect_shape(where, y_name, y, {x.extent(0), layer.out_dim()});
  expect_apart(where, y_name, y, "x", x);
}
/// Requires the shapes of a backward: dy [N, out_dim] for N items x. If x are rows, dx has the shape of x and overlaps
/// neither x nor dy.
/// @throws ArgumentError
template <class L, class X, class Dy, class Dx>
void expect_backward_shapes(const char* where, const L& layer, const X& x, const Dy& dy, const Dx& dx) {
  expect_items(where, layer, x);
  expect_shape(where, "dy", dy, {x.extent(0), layer.out_dim()});
  if constexpr (X::rank == 2) {
    expect_shape(where, "dx", dx, {x.extent(0), layer.in_dim()});
    expect_apart(where, "dx", dx, "x", x);
    expect_apart(where, "dx", dx, "dy", dy);
  }
}

/// Checks everything about a forward in O(1), before it writes: shapes, then layer.validate(params, N, with...). `with`
/// is the carry, if it is a layer, and the extra inputs.
/// @throws ArgumentError
template <class L, class P, class X, class Y, class... With>
void expect_forward(const char* where, const L& layer, const P& params, const X& x, const char* y_name, const Y& y,
                    const With&... with) {
  expect_forward_shapes(where, layer, x, y_name, y);
  layer.validate(params, x.extent(0), with...);
}
/// Checks everything about a backward in the same way, and that grads have the shapes of params in other memory.
/// @throws ArgumentError
template <class L, class P, class X, class Dy, class Dx, class... With>
void expect_backward(const char* where, const L& layer, const P& params, const X& x, const Dy& dy, const Dx& dx,
                     const P& grads, const With&... with) {
  expect_backward_shapes(where, layer, x, dy, dx);
  layer.validate(params, x.extent(0), with...);
  expect(&params != &grads || count_tensors(params) == 0, where, "grads", "a separate pack", "the parameters");
  expect_like(where, "grads", params, grads);
}

/// Runs a branch without keeping values for backward. Gives the same bits as forward.
/// @cost forward, and the activations of one part at a time; no allocation after the first call with as many items
template <class T, class B, class L, class Step = functor::NoStep<T>>
void infer_branch(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
                  Out<T, 2, B> u, const Extra<L, T, B>& extra, const Step& step = {}) {
  const auto here = ctx.here();
  if constexpr (detail_::hook::branch::infer<L, T, B>()) {
    branch.infer(ctx, p, x, u, extra, step);
  } else {
    auto discarded = ctx.template acquire<Saved<L, T, B>>();
    branch.forward(ctx, p, x, u, *discarded, extra, step);
  }
}
/// Runs a layer without keeping values for backward.
template <class T, class B, class L>
void infer(const L& layer, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
           Carry<L, T, B>& carry, Out<T, 2, B> y, const Extra<L, T, B>& extra = {}) {
  const auto here = ctx.here();
  if constexpr (detail_::hook::layer::infer<L, T, B>()) {
    layer.infer(ctx, p, x, carry, y, extra);
  } else {
    auto discarded = ctx.template acquire<Saved<L, T, B>>();
    layer.forward(ctx, p, x, carry, y, *discarded, extra);
  }
}

namespace detail_::passes {

/// Returns memory [rows, columns] for a value of a forward pass: a member of Saved if backward needs it, or scratch
/// memory.
template <class T, class B, class S>
View<T, 2, B> keep_or_scratch(typename B::Context&, S* keep, Tensor<T, 2, B> S::*member, Index rows, Index columns) {
  (keep->*member).resize(rows, columns);
  return (keep->*member).view();
}
template <class T, class B, class M>
View<T, 2, B> keep_or_scratch(typename B::Context& ctx, std::nullptr_t, M, Index rows, Index columns) {
  return ctx.template scratch<T>(rows, columns);
}
/// Returns the part of Saved that a part of a composite keeps, or nullptr in inference.
template <class S, class M>
M* part_of(S* keep, M S::*member) {
  return &(keep->*member);
}
template <class M>
std::nullptr_t part_of(std::nullptr_t, M) {
  return nullptr;
}
/// Runs a branch, or a layer. Keeps values for backward in *keep, or nothing if keep is nullptr.
template <class T, class B, class L, class Keep, class Step = functor::NoStep<T>>
void run_branch(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
                Out<T, 2, B> u, Keep keep, const Extra<L, T, B>& extra, const Step& step = {}) {
  if constexpr (std::is_null_pointer_v<Keep>) {
    infer_branch<T, B>(branch, ctx, p, x, u, extra, step);
  } else {
    branch.forward(ctx, p, x, u, *keep, extra, step);
  }
}
template <class T, class B, class L, class Keep>
void run_layer(const L& layer, typename B::Context& ctx, const Params<L, T, B>& p, NonDeduced<Items<L, T, B>> x,
               Carry<L, T, B>& carry, Out<T, 2, B> y, Keep keep, const Extra<L, T, B>& extra) {
  if constexpr (std::is_null_pointer_v<Keep>) {
    infer<T, B>(layer, ctx, p, x, carry, y, extra);
  } else {
    layer.forward(ctx, p, x, carry, y, *keep, extra);
  }
}

}  // namespace detail_::passes

/// Runs forward of a branch, and work() once. If the branch waits for other shards, work() runs meanwhile; it must not
/// touch data of the branch.
template <class T, class B, class L, class Work>
void forward_overlapping(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p,
                         NonDeduced<Items<L, T, B>> x, Out<T, 2, B> u, Saved<L, T, B>& saved,
                         const Extra<L, T, B>& extra, const Work& work) {
  if constexpr (detail_::hook::branch::forward_overlapping<L, T, B>()) {
    branch.forward_overlapping(ctx, p, x, u, saved, extra, functor::NoStep<T>{}, work);
  } else {
    branch.forward(ctx, p, x, u, saved, extra, functor::NoStep<T>{});
    work();
  }
}
/// Runs infer_branch in the same way.
template <class T, class B, class L, class Work>
void infer_overlapping(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p,
                       NonDeduced<Items<L, T, B>> x, Out<T, 2, B> u, const Extra<L, T, B>& extra, const Work& work) {
  if constexpr (detail_::hook::branch::forward_overlapping<L, T, B>() && !detail_::hook::branch::infer<L, T, B>()) {
    auto discarded = ctx.template acquire<Saved<L, T, B>>();
    branch.forward_overlapping(ctx, p, x, u, *discarded, extra, functor::NoStep<T>{}, work);
  } else {
    infer_branch<T, B>(branch, ctx, p, x, u, extra);
    work();
  }
}
/// Runs work(), and backward of a branch, which adds to dx and dextra after work().
template <class T, class B, class L, class Work>
void backward_overlapping(const L& branch, typename B::Context& ctx, const Params<L, T, B>& p,
                          NonDeduced<Items<L, T, B>> x, const Saved<L, T, B>& saved, In<T, 2, B> du,
                          NonDeduced<ItemsGrad<L, T, B>> dx, Params<L, T, B>& grads, const Extra<L, T, B>& extra,
                          ExtraGrad<L, T, B>& dextra, const Work& work) {
  if constexpr (detail_::hook::branch::backward_overlapping<L, T, B>()) {
    branch.backward_overlapping(ctx, p, x, saved, du, dx, grads, extra, dextra, work);
  } else {
    work();
    branch.backward(ctx, p, x, saved, du, dx, grads, extra, dextra);
  }
}

namespace detail_::lookup {

template <class T, class B>
inline constexpr bool are_elements = false;
template <class T, class B>
requires requires { typename B::Context; }
inline constexpr bool are_elements<T, B> = std::is_floating_point_v<T>;

template <class L, template <class, class> class ParamsT, class T, class B>
constexpr bool are_params_of() {
  if constexpr (are_elements<T, B>)
    return std::is_same_v<ParamsT<T, B>, Params<L, T, B>>;
  else
    return false;
}

}  // namespace detail_::lookup

/// Deduces T and B from the parameters: `infer(layer, ctx, params, x, carry, y)`.
template <class L, template <class, class> class ParamsT, class T, class B,
          class = std::enable_if_t<detail_::lookup::are_params_of<L, ParamsT, T, B>()>>
void infer(const L& layer, typename B::Context& ctx, const ParamsT<T, B>& p, NonDeduced<Items<L, T, B>> x,
           Carry<L, T, B>& carry, Out<T, 2, B> y, const Extra<L, T, B>& extra = {}) {
  infer<T, B>(layer, ctx, p, x, carry, y, extra);
}
/// Runs a branch without a layer around it, for example a Mixture: `infer(branch, ctx, params, x, u)`.
template <class L, template <class, class> class ParamsT, class T, class B,
          class = std::enable_if_t<detail_::lookup::are_params_of<L, ParamsT, T, B>()>>
void infer(const L& branch, typename B::Context& ctx, const ParamsT<T, B>& p, NonDeduced<Items<L, T, B>> x,
           Out<T, 2, B> u, const Extra<L, T, B>& extra = {}) {
  constexpr bool is_layer = !detail_::policy::Branch<L, T, B> && detail_::policy::Layer<L, T, B>;
  GATEFOLD_REQUIRE(!is_layer,
                   "gatefold: infer of a layer also takes a carry: Carry<L, T, B> carry; layer.begin(ctx, params, "
                   "items, carry); infer(layer, ctx, params, x, carry, y); see docs/how-to/serving.md");
  if constexpr (!is_layer) infer_branch<T, B>(branch, ctx, p, x, u, extra);
}

namespace detail_::lookup {

/// Whether an argument of infer after the parameters fits no parameter of a layer or branch with these elements and
/// this backend: items, carry, memory for y, extra inputs.
template <class L, class T, class B, class A>
inline constexpr bool is_foreign =
    !std::is_convertible_v<A, Items<L, T, B>> && !std::is_convertible_v<A, View<T, 2, B>> &&
    !std::is_same_v<A, Carry<L, T, B>&> && !std::is_convertible_v<A, const Extra<L, T, B>&>;
template <class L, class C, class T, class B, class... A>
constexpr bool any_foreign() {
  if constexpr (std::is_floating_point_v<T> && requires {
                  typename C::Backend;
                  typename B::Context;
                })
    return sizeof...(A) < 2 || !std::is_convertible_v<C&, typename B::Context&> || (is_foreign<L, T, B, A> || ...);
  else
    return false;
}

}  // namespace detail_::lookup

/// Reports arguments of different models in one sentence.
template <class L, class C, template <class, class> class ParamsT, class T, class B, class... A,
          class = std::enable_if_t<(detail_::lookup::are_elements<T, B> &&
                                    !detail_::lookup::are_params_of<L, ParamsT, T, B>()) ||
                                   detail_::lookup::any_foreign<L, C, T, B, A...>()>>
void infer(const L&, C&, const ParamsT<T, B>&, A&&...) {
  GATEFOLD_REQUIRE(std::is_void_v<L>,
                   "gatefold: the arguments of infer must belong to one model L, one element type T and one backend B: "
                   "B::Context, Params<L, T, B>, items, Carry<L, T, B> (if L is a layer), y and Extra<L, T, B>; see "
                   "docs/reference/functions.md");
}

/// Computes the adjoint of a layer, without the adjoint of its extra inputs. Adds to dx and grads, and turns dcarry
/// from the adjoint of the carry after the layer into the adjoint of the carry before it.
/// @throws ArgumentError unless shapes fit, or if dcarry is unchanged since a forward or since another backward with
///         these arguments (update/pass.hpp), before anything is written
template <class L, template <class, class> class ParamsT, class T, class B>
void backward(const L& layer, typename B::Context& ctx, const ParamsT<T, B>& p, NonDeduced<Items<L, T, B>> x,
              const Saved<L, T, B>& saved, In<T, 2, B> dy, Carry<L, T, B>& dcarry, NonDeduced<ItemsGrad<L, T, B>> dx,
              ParamsT<T, B>& grads, const Extra<L, T, B>& extra = {}) {
  const auto here = ctx.here();
  update::enter_backward(dcarry, &p, &saved, dy.data());
  ExtraGrad<L, T, B> unused{};
  layer.backward(ctx, p, x, saved, dy, dcarry, dx, grads, extra, unused);
  const void* written = nullptr;
  if constexpr (!detail_::policy::reads_ids<L, T, B>) written = dx.data();
  update::leave_backward(dcarry, written);
}
/// Computes the adjoint of a branch: `backward(branch, ctx, params, x, saved, du, dx, grads)`.
template <class L, template <class, class> class ParamsT, class T, class B>
void backward(const L& branch, typename B::Context& ctx, const ParamsT<T, B>& p, NonDeduced<Items<L, T, B>> x,
              const Saved<L, T, B>& saved, In<T, 2, B> du, NonDeduced<ItemsGrad<L, T, B>> dx, ParamsT<T, B>& grads,
              const Extra<L, T, B>& extra = {}) {
  constexpr bool is_layer = !detail_::policy::Branch<L, T, B> && detail_::policy::Layer<L, T, B>;
  GATEFOLD_REQUIRE(!is_layer,
                   "gatefold: backward of a layer also takes the adjoint of its carry: backward(layer, ctx, "
                   "params, x, saved, dy, dcarry, dx, grads); see "
                   "docs/reference/functions.md");
  if constexpr (!is_layer) {
    const auto here = ctx.here();
    ExtraGrad<L, T, B> unused{};
    branch.backward(ctx, p, x, saved, du, dx, grads, extra, unused);
  }
}
/// Reports too few or too many arguments in one sentence.
template <class L, class C, template <class, class> class ParamsT, class T, class B, class... A,
          class = std::enable_if_t<detail_::lookup::are_elements<T, B> && (sizeof...(A) < 5 || sizeof...(A) > 7)>>
void backward(const L&, C&, const ParamsT<T, B>&, A&&...) {
  GATEFOLD_REQUIRE(std::is_void_v<L>,
                   "gatefold: wrong number of arguments: call backward(layer, ctx, params, x, saved, dy, dcarry, dx, "
                   "grads) for a layer or backward(branch, ctx, params, x, saved, du, dx, grads) for a branch, with "
                   "extra inputs as last argument if there are any; see docs/reference/functions.md");
}

/// Calls f(saved) for every mixture in the saved values of a layer, in depth order. Its plan holds the expert of each
/// item (`saved.plan.offsets`), its gate the probabilities and auxiliary losses. If an update rule evaluates its
/// mixture twice, f gets both evaluations, the second without auxiliary losses.
template <class S, class F>
void for_each_mixture(const S& saved, F&& f) {
  if constexpr (detail_::hook::saved::mixtures<const S, std::remove_reference_t<F>>()) saved.mixtures(f);
}

}  // namespace gatefold
