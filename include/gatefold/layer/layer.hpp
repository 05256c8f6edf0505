#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/layer.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/update/pass.hpp"
#include "gatefold/update/update.hpp"

/// A model consists of branches and layers. A branch computes u = branch(x); a layer is a branch with its update rule,
/// for example y = x + branch(x). Both map items [N, in_dim], one row per item, to items [N, out_dim], and both have
/// init(ctx, seed). If a branch or layer reads ids [N] in [0, in_dim) instead of rows, as an Embedding does, it has a
/// nested type `Items`, and its dx is Nothing.
///
/// The functions of a branch:
///
///     forward (ctx, params, x, u, saved, extra = {}, step = {}) const;      // writes u, calls step(at, i) for all i
///     backward(ctx, params, x, saved, du, dx, grads, extra, dextra) const;  // adds to dx and grads
///
/// `step` is a functor of the update rule around the branch. It is called for each element of u and uses its value. The
/// type of `step` is a template parameter with the default functor::NoStep<T>. A branch can run the step while the
/// values of u are still in the processor's cache. A branch that cannot do this ends with run_step(ctx, u, step).
///
/// A layer has a carry, a state that is passed from layer to layer:
///
///     begin   (ctx, params, items, carry) const;                            // initialises the carry
///     forward (ctx, params, x, carry, y, saved, extra = {}) const;          // writes y, updates carry
///     backward(ctx, params, x, saved, dy, dcarry, dx, grads, extra, dextra) const;
///
/// Optional members of branches and layers are in policy/hooks.hpp. You can pass a branch or an expert instead of a
/// layer to Stack, Chain, PerToken, Trainer and the checks. They treat a branch as NoResidual{branch}, and an expert as
/// NoResidual{OneExpert{expert}}.
namespace gatefold {

/// Requires that all ids (for example tokens) are in [0, count). Ids on a device are not checked.
/// @throws ArgumentError with the first id outside this range and its position
/// @cost   two comparisons per id
template <class B>
void expect_ids(const char* where, const char* name, View<const Index, 1, B> ids, Index count) {
  if constexpr (B::is_host)
    for (Index n = 0; n < ids.extent(0); ++n)
      expect(0 <= ids(n) && ids(n) < count, where, Joined{name, "[", n, "]"}, Joined{"an id from 0 to ", count - 1},
             ids(n));
}

/// Checks the arguments of a layer in O(1): the shapes of parameters and carry (the state passed from layer to layer),
/// options, and extra inputs. A stack calls this function for all its layers before it writes anything.
/// @throws ArgumentError if an argument is invalid; the message names the argument
template <class L, template <class, class> class ParamsT, class T, class B>
void validate(const L& layer, const ParamsT<T, B>& params, Index items, const Carry<L, T, B>& carry,
              const Extra<L, T, B>& extra) {
  if constexpr (detail_::hook::layer::validate<L, T, B>()) layer.validate(params, items, carry, extra);
}
/// Checks the arguments of a branch in O(1): the shapes of parameters, options, and extra inputs.
/// @throws ArgumentError if an argument is invalid; the message names the argument
template <class L, template <class, class> class ParamsT, class T, class B>
void validate(const L& branch, const ParamsT<T, B>& params, Index items, const Extra<L, T, B>& extra) {
  if constexpr (detail_::hook::branch::validate<L, T, B>()) branch.validate(params, items, extra);
}

/// Requires that x is an input for a layer: rows [N, in_dim], or ids [N] in [0, in_dim) if the layer reads ids. Ids on
/// a device are not checked.
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
/// Requires that the output y of a forward pass is [N, out_dim] for N items x. y must not overlap x, because backward
/// reads x.
/// @throws ArgumentError
template <class L, class X, class Y>
void expect_forward_shapes(const char* where, const L& layer, const X& x, const char* y_name, const Y& y) {
  expect_items(where, layer, x);
  expect_shape(where, y_name, y, {x.extent(0), layer.out_dim()});
  expect_apart(where, y_name, y, "x", x);
}
/// Checks the views of a backward pass. The gradient dy must be [N, out_dim] for N items x. If x has rows, dx must have
/// the shape of x and must not overlap x or dy.
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

/// Checks the arguments of a forward pass before the pass writes anything. Checks first the shapes, and then calls
/// layer.validate(params, N, with...). The arguments `with` are the carry (only for a layer) and the extra inputs. The
/// cost is O(1), or O(N) if x are ids on a host.
/// @throws ArgumentError if an argument is invalid
template <class L, class P, class X, class Y, class... With>
void expect_forward(const char* where, const L& layer, const P& params, const X& x, const char* y_name, const Y& y,
                    const With&... with) {
  expect_forward_shapes(where, layer, x, y_name, y);
  layer.validate(params, x.extent(0), with...);
}
/// Checks the arguments of a backward pass before the pass writes anything. Checks first the shapes, then calls
/// layer.validate(params, N, with...), and then checks that grads is a separate pack with the shapes of params. The
/// arguments `with` are the carry (only for a layer) and the extra inputs. The cost is O(1), or O(N) if x are ids on a
/// host.
/// @throws ArgumentError
template <class L, class P, class X, class Dy, class Dx, class... With>
void expect_backward(const char* where, const L& layer, const P& params, const X& x, const Dy& dy, const Dx& dx,
                     const P& grads, const With&... with) {
  expect_backward_shapes(where, layer, x, dy, dx);
  layer.validate(params, x.extent(0), with...);
  expect(&params != &grads || count_tensors(params) == 0, where, "grads", "a separate pack", "the parameters");
  expect_like(where, "grads", params, grads);
}

/// Runs a branch for inference, without keeping values for backward. The result has the same bits as the result of
/// forward. If the branch has no function `infer`, runs forward and discards the saved values.
/// @cost   the cost of forward. If the branch has a function `infer`, memory for the activations of one part of the
///         branch at a time; otherwise memory for all saved values. No allocation after the first call with this number
///         of items
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
/// Runs a layer for inference, without keeping values for backward.
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

/// Runs forward of a branch, and calls work() once. If the branch waits for data from other shards (parts of a batch in
/// other threads or processes), work() runs during this time. work() must not access data of the branch.
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
/// Runs a branch for inference (infer_branch), and calls work() once. If the branch waits for data from other shards
/// (parts of a batch in other threads or processes), work() runs during this time.
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
/// Runs backward of a branch, and calls work() once. If the branch waits for data from other shards, work() runs during
/// this time. The branch adds to dx and dextra only after work() has returned.
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

/// Runs a layer for inference. The element type and the backend are deduced from the parameters: `infer(layer, ctx,
/// params, x, carry, y)`.
template <class L, template <class, class> class ParamsT, class T, class B,
          class = std::enable_if_t<detail_::lookup::are_params_of<L, ParamsT, T, B>()>>
void infer(const L& layer, typename B::Context& ctx, const ParamsT<T, B>& p, NonDeduced<Items<L, T, B>> x,
           Carry<L, T, B>& carry, Out<T, 2, B> y, const Extra<L, T, B>& extra = {}) {
  infer<T, B>(layer, ctx, p, x, carry, y, extra);
}
/// Runs a branch for inference, without a layer around it: `infer(branch, ctx, params, x, u)`. The branch can be a
/// Mixture, for example.
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

/// Runs the backward pass of a layer, but does not compute gradients of its extra inputs. Adds to dx and grads. dcarry
/// is the gradient of the carry, the state that is passed from layer to layer. On entry, it is the gradient of the
/// carry after the layer. On return, it is the gradient of the carry before the layer.
/// @throws ArgumentError, before anything is written, if a shape is wrong. Also throws ArgumentError if dcarry is the
///         carry that forward wrote, or if a second backward pass begins with the dcarry that the first pass wrote (see
///         update/pass.hpp)
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
/// Runs the backward pass of a branch, but does not compute gradients of its extra inputs: `backward(branch, ctx,
/// params, x, saved, du, dx, grads)`. Adds to dx and grads.
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
/// Calls f for every mixture of experts in `saved`, the saved values of a layer, from the first mixture to the last.
/// The argument of f is the `saved` of the mixture: `saved.plan` has the items of each expert (`saved.plan.offsets`),
/// and `saved.gate` the probabilities and auxiliary losses. If an update rule evaluates its mixture twice, f is called
/// for both evaluations; the second has no auxiliary losses.
template <class S, class F>
void for_each_mixture(const S& saved, F&& f) {
  if constexpr (detail_::hook::saved::mixtures<const S, std::remove_reference_t<F>>()) saved.mixtures(f);
}

}  // namespace gatefold
