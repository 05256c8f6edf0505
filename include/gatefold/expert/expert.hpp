#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "gatefold/backend/backend.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Defines what an expert policy is: a struct with these members that evaluates E experts of one kind. A slot is one
/// row of work, one item for one expert; the slots are grouped by expert:
///
///     Index in_dim() const;  Index out_dim() const;
///     Params<T, B> init<T, B>(ctx, experts, seed) const;        // the first extent of every tensor is the expert
///     forward (ctx, params, groups, x, z, saved) const;         // writes z [S, out_dim]
///     backward(ctx, params, groups, x, saved, dz, dslots, grads) const;  // writes dslots [S, in_dim], adds to grads
///
/// x contains the items in their original order, and slot s reads row groups.row(s) of x. z, dz and dslots have one row
/// per slot. Rows past groups.offsets[E] are never read or written.
///
/// Optional members are Saved, validate(params, experts) and the functions below. infer returns the same bits as
/// forward and keeps nothing for backward:
///
///     infer   (ctx, params, groups, x, z) const;                // writes z [S, out_dim]
///
/// weighted_backward is the backward pass of u[n] = Σ_s w[s] z[s], with a sum over the slots of item n. Its arguments
/// are du [N, out_dim] and w instead of dz[s] = w[s] du[row(s)]. It writes dslots and the gradient of w, dw[s] =
/// ⟨du[row(s)], z[s]⟩, and adds to grads (output_adjoint.hpp):
///
///     weighted_backward(ctx, params, groups, x, saved, du, weights, dslots, grads) const;
///
/// An expert with `static constexpr bool stores_slots = true` can store z and dslots in a different element type
/// (SlotValue). Its functions forward, infer and weighted_backward have this type as third template parameter:
///
///     template <class T, class B, class Z = T>
///     void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<Z, 2, B> z, …
///
/// An expert that draws random numbers gets the noise of a call before it runs. The numbers depend on item and expert,
/// so that the result does not depend on the number or the order of the slots:
///
///     E with_noise(noise) const;
namespace gatefold {

/// Returns a copy of an expert that uses the random numbers `noise`. If the expert does not draw random numbers,
/// returns it unchanged.
template <class E>
E with_noise(const E& expert, const Noise& noise) {
  if constexpr (detail_::hook::expert::with_noise<E>()) {
    return expert.with_noise(noise);
  } else {
    return expert;
  }
}

/// The element type of an expert's outputs z and of the gradients of its inputs, dslots, in a mixture. It is the
/// backend's narrower SlotValue if the expert supports it, otherwise T.
template <class E, class T, class B>
using SlotElement = std::conditional_t<detail_::hook::expert::stores_slots<E>(), SlotValue<T, B>, T>;

/// The three functions below call forward, infer or weighted_backward of an expert, with outputs and input gradients of
/// element type Z instead of T.
template <class T, class B, class Z, class E, class... A>
void forward_slots(const E& expert, A&&... arguments) {
  if constexpr (std::is_same_v<Z, T>) {
    expert.forward(std::forward<A>(arguments)...);
  } else {
    expert.template forward<T, B, Z>(std::forward<A>(arguments)...);
  }
}
template <class T, class B, class Z, class E, class... A>
void infer_slots(const E& expert, A&&... arguments) {
  if constexpr (std::is_same_v<Z, T>) {
    expert.infer(std::forward<A>(arguments)...);
  } else {
    expert.template infer<T, B, Z>(std::forward<A>(arguments)...);
  }
}
template <class T, class B, class Z, class E, class... A>
void weighted_backward_slots(const E& expert, A&&... arguments) {
  if constexpr (std::is_same_v<Z, T>) {
    expert.weighted_backward(std::forward<A>(arguments)...);
  } else {
    expert.template weighted_backward<T, B, Z>(std::forward<A>(arguments)...);
  }
}

/// Runs an expert for inference, without keeping values for backward. If the expert has no `infer`, calls its `forward`
/// and discards the saved values.
/// @tparam Z  element type of the outputs z
template <class T, class B, class Z = T, class E>
void infer_expert(const E& expert, typename B::Context& ctx, const Params<E, T, B>& p, const Groups<B>& groups,
                  In<T, 2, B> x, Out<Z, 2, B> z) {
  if constexpr (detail_::hook::expert::infer<E, T, B>()) {
    infer_slots<T, B, Z>(expert, ctx, p, groups, x, z);
  } else {
    auto discarded = ctx.template acquire<Saved<E, T, B>>();
    forward_slots<T, B, Z>(expert, ctx, p, groups, x, z, *discarded);
  }
}
/// Runs an expert for inference, as infer_expert above. The element type T and the backend B are deduced from the
/// parameters.
template <class E, template <class, class> class ParamsT, class T, class B>
void infer_expert(const E& expert, typename B::Context& ctx, const ParamsT<T, B>& p,
                  const NonDeduced<Groups<B>>& groups, In<T, 2, B> x, Out<T, 2, B> z) {
  infer_expert<T, B>(expert, ctx, p, groups, x, z);
}

namespace detail_::policy {

template <class E, class T, class B>
concept ExpertTypes = requires(const E expert, typename B::Context& ctx) {
  { expert.in_dim() } -> std::convertible_to<Index>;
  { expert.out_dim() } -> std::convertible_to<Index>;
  { expert.template init<T, B>(ctx, Index(1), Seed{}) } -> std::same_as<Params<E, T, B>>;
};
template <class E, class T, class B, class Given = Params<E, T, B>>
concept ExpertForward = requires(const E expert, Probe<T, B> a, const Given& params, Saved<E, T, B>& saved) {
  expert.forward(a.ctx, params, a.groups, a.in, a.out, saved);
};
template <class E, class T, class B, class Given = Params<E, T, B>>
concept ExpertBackward = requires(const E expert, Probe<T, B> a, const Given& params, const Saved<E, T, B>& saved,
                                  Params<E, T, B>& grads) {
  expert.backward(a.ctx, params, a.groups, a.in, saved, a.in, a.out, grads);
};

/// True for an expert that can store its outputs z and its input gradients dslots in the element type SlotValue, which
/// can be narrower than T. If the backend B has no narrower type, SlotValue is T.
template <class E, class T, class B>
concept StoresSlots = requires(const E expert, Probe<T, B> a, const Params<E, T, B>& params, Saved<E, T, B>& saved,
                               const SlotWeights<T, B>& weights, Params<E, T, B>& grads,
                               View<SlotValue<T, B>, 2, B> slots) {
  expert.template forward<T, B, SlotValue<T, B>>(a.ctx, params, a.groups, a.in, slots, saved);
  expert.template infer<T, B, SlotValue<T, B>>(a.ctx, params, a.groups, a.in, slots);
  expert.template weighted_backward<T, B, SlotValue<T, B>>(a.ctx, params, a.groups, a.in, saved, a.in, weights, slots,
                                                           grads);
};

template <class E, class T, class B>
concept Expert = ExpertTypes<E, T, B> && ExpertForward<E, T, B> && ExpertBackward<E, T, B>;

/// Returns true if E is an expert. If it is not, a static_assert names the first unmet requirement.
template <class E, class T, class B>
constexpr bool check_expert() {
  GATEFOLD_EXPECT(
      (ExpertTypes<E, T, B>),
      "gatefold: an expert needs in_dim(), out_dim() and Params<T, B> init<T, B>(ctx, experts, seed) const; "
      "see docs/how-to/extending.md#expert")
  GATEFOLD_EXPECT((ExpertForward<E, T, B>),
                  "gatefold: an expert needs forward(ctx, params, groups, x, z, saved) const; "
                  "see docs/how-to/extending.md#expert")
  GATEFOLD_EXPECT((ExpertBackward<E, T, B>),
                  "gatefold: an expert needs backward(ctx, params, groups, x, saved, dz, dslots, grads) const; "
                  "see docs/how-to/extending.md#expert")
  GATEFOLD_EXPECT((!ExpertForward<E, T, B, Foreign> && !ExpertBackward<E, T, B, Foreign>),
                  "gatefold: forward and backward of an expert must take params as const Params<T, B>&, or as const "
                  "Nothing<T, B>& if the expert has no parameters. const auto& would also accept the parameters of "
                  "another model; see docs/how-to/extending.md#what-all-policies-share")
  GATEFOLD_EXPECT(
      (!detail_::hook::expert::stores_slots<E>() || StoresSlots<E, T, B>),
      "gatefold: an expert that declares stores_slots needs forward<T, B, Z>, infer<T, B, Z> and weighted_backward<T, "
      "B, Z> with z and dslots of type Out<Z, 2, B>; see docs/reference/optional_members.md")
  return detail_::hook::expert::all<E, T, B>() && parts_fit<E, T, B>();
}

}  // namespace detail_::policy

/// Adds the gradient of the weights W_e of each expert e to `grad`, for a product c[s] = a[row(s)] W_e: grad[e] += Σ_s
/// a[row(s)]ᵀ dc[s]. With `dc_rows`, uses dc[dc_rows[s]] instead of dc[s]. If set_zero_later() has deferred the zeros
/// of `grad`, overwrites `grad` without reading it. Does nothing if grad.is_skipped(), that is, if the gradient is not
/// needed.
/// @tparam Products  the type whose grouped_outer is called: B, or `FullPrecision<B>`
template <class Products, class Context, class B, class A, class DC, class T>
void add_weight_gradient(Context& ctx, const Groups<B>& groups, const A& a, const DC& dc, Tensor<T, 3, B>& grad,
                         View<const Index, 1, B> dc_rows = {}) {
  if (grad.is_skipped()) return;
  const bool stored = grad.take_zeros();
  Products::grouped_outer(ctx, groups, a, dc, grad.view(), !stored, dc_rows);
}

}  // namespace gatefold
