#pragma once

#include <concepts>

#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/policy/probe.hpp"

/// The family of experts: what is computed. An expert policy evaluates a bank of E experts of one kind on grouped
/// slots:
///
///     Index in_dim() const;  Index out_dim() const;
///     Params<T, B> init<T, B>(ctx, experts, seed) const;        // the first extent of every tensor is the expert
///     forward (ctx, params, groups, x, z, saved) const;         // writes z [S, out_dim]
///     backward(ctx, params, groups, x, saved, dz, dslots, grads) const;  // writes dslots [S, in_dim], adds to grads
///
/// x are the un-permuted items: slot s reads row groups.row(s). z, dz and dslots are in slot order. Rows past
/// groups.offsets[E] are never read or written. Optional: Saved, validate(params, experts), and forward that keeps
/// nothing, with the same bits:
///
///     infer   (ctx, params, groups, x, z) const;                // writes z [S, out_dim]
///
/// and the backward of u[n] = Σ_s w[s] z[s] over the slots of item n, which is given du [N, out_dim] and w in place of
/// dz[s] = w[s] du[row(s)]: writes dslots and the adjoints of w, ⟨du[row(s)], z[s]⟩, adds to grads (output_adjoint.hpp)
///
///     weighted_backward(ctx, params, groups, x, saved, du, weights, dslots, grads) const;
///
/// One that draws numbers is given them before it runs, and draws by item and expert, so that neither the slot nor its
/// place matters:
///
///     E with_noise(noise) const;
namespace gatefold {

/// The expert with the noise of a call, where it draws numbers.
template <class E>
E with_noise(const E& expert, const Noise& noise) {
  if constexpr (hook::expert::with_noise<E>()) {
    return expert.with_noise(noise);
  } else {
    return expert;
  }
}

/// Run an expert without keeping anything for backward.
template <class T, class B, class E>
void infer_expert(const E& expert, typename B::Context& ctx, const Params<E, T, B>& p, const Groups<B>& groups,
                  In<T, 2, B> x, Out<T, 2, B> z) {
  if constexpr (hook::expert::infer<E, T, B>()) {
    expert.infer(ctx, p, groups, x, z);
  } else {
    auto discarded = ctx.template acquire<Saved<E, T, B>>();
    expert.forward(ctx, p, groups, x, z, *discarded);
  }
}
/// The same, T and B deduced from the parameters.
template <class E, template <class, class> class ParamsT, class T, class B>
void infer_expert(const E& expert, typename B::Context& ctx, const ParamsT<T, B>& p,
                  const NonDeduced<Groups<B>>& groups, In<T, 2, B> x, Out<T, 2, B> z) {
  infer_expert<T, B>(expert, ctx, p, groups, x, z);
}

namespace policy {

template <class E, class T, class B>
concept ExpertTypes = requires(const E expert, typename B::Context& ctx) {
  { expert.in_dim() } -> std::convertible_to<Index>;
  { expert.out_dim() } -> std::convertible_to<Index>;
  { expert.template init<T, B>(ctx, Index(1), Seed{}) } -> std::same_as<Params<E, T, B>>;
};
template <class E, class T, class B>
concept ExpertForward = requires(const E expert, Probe<T, B> a, const Params<E, T, B>& params, Saved<E, T, B>& saved) {
  expert.forward(a.ctx, params, a.groups, a.in, a.out, saved);
};
template <class E, class T, class B>
concept ExpertBackward = requires(const E expert, Probe<T, B> a, const Params<E, T, B>& params,
                                  const Saved<E, T, B>& saved, Params<E, T, B>& grads) {
  expert.backward(a.ctx, params, a.groups, a.in, saved, a.in, a.out, grads);
};

template <class E, class T, class B>
concept Expert = ExpertTypes<E, T, B> && ExpertForward<E, T, B> && ExpertBackward<E, T, B>;

/// True for an expert; otherwise the first unmet requirement is reported in one sentence.
template <class E, class T, class B>
constexpr bool check_expert() {
  GATEFOLD_EXPECT(
      (ExpertTypes<E, T, B>),
      "gatefold: an expert needs in_dim(), out_dim() and Params<T, B> init<T, B>(ctx, experts, seed) const; "
      "see docs/extending.md#expert")
  GATEFOLD_EXPECT((ExpertForward<E, T, B>),
                  "gatefold: an expert needs forward(ctx, params, groups, x, z, saved) const; "
                  "see docs/extending.md#expert")
  GATEFOLD_EXPECT((ExpertBackward<E, T, B>),
                  "gatefold: an expert needs backward(ctx, params, groups, x, saved, dz, dslots, grads) const; "
                  "see docs/extending.md#expert")
  return hook::expert::all<E, T, B>() && check_inside<E, T, B>();
}

}  // namespace policy
}  // namespace gatefold
