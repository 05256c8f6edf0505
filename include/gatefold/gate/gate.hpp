#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <type_traits>

#include "gatefold/backend/shapes.hpp"
#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Interface of gates. A gate chooses the experts of each item and writes them to a plan. It is a struct of options
/// with these members:
///
///     template <class T, class B> using Plan = SparsePlan<T, B>;             // or a different plan
///     Index experts() const;
///     forward (ctx, params, x, plan, saved, extra) const;                    // writes plan and saved
///     backward(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra) const;   // adds to dx and grads
///
/// Optional members are Params with init(ctx, seed), Saved, Extra, ExtraGrad, and the members in policy/hooks.hpp.
namespace gatefold {

/// Writes the plan of a gate (the chosen experts and their weights) for inference. No values are saved for backward.
template <class T, class B, class G>
void infer_gate(const G& gate, typename B::Context& ctx, const Params<G, T, B>& p, In<T, 2, B> x,
                NonDeduced<Plan<G, T, B>>& plan, const Extra<G, T, B>& extra) {
  if constexpr (detail_::hook::gate::infer<G, T, B>()) {
    gate.infer(ctx, p, x, plan, extra);
  } else {
    auto discarded = ctx.template acquire<Saved<G, T, B>>();
    gate.forward(ctx, p, x, plan, *discarded, extra);
  }
}
/// Writes the plan of a gate (the chosen experts and their weights) for inference. The element type T and the backend B
/// are deduced from the type of the parameters.
template <class G, template <class, class> class ParamsT, class T, class B>
void infer_gate(const G& gate, typename B::Context& ctx, const ParamsT<T, B>& p, In<T, 2, B> x,
                NonDeduced<Plan<G, T, B>>& plan, const Extra<G, T, B>& extra = {}) {
  infer_gate<T, B>(gate, ctx, p, x, plan, extra);
}

namespace detail_::policy {

template <class G, class T, class B>
concept GateTypes = requires(const G g) {
  typename G::template Plan<T, B>::Grad;
  requires CountsExperts<G>;
};
template <class G, class T, class B, class Given = Params<G, T, B>>
concept GateForward = requires(const G g, Probe<T, B> a, const Given& params, typename G::template Plan<T, B>& plan,
                               Saved<G, T, B>& saved, const Extra<G, T, B>& extra) {
  g.forward(a.ctx, params, a.in, plan, saved, extra);
};
template <class G, class T, class B, class Given = Params<G, T, B>>
concept GateBackward = requires(const G g, Probe<T, B> a, const Given& params,
                                const typename G::template Plan<T, B>& plan, const Saved<G, T, B>& saved,
                                const typename G::template Plan<T, B>::Grad& dplan, Params<G, T, B>& grads,
                                const Extra<G, T, B>& extra, ExtraGrad<G, T, B>& dextra) {
  g.backward(a.ctx, params, a.in, plan, saved, dplan, a.out, grads, extra, dextra);
};

template <class G, class T, class B>
concept Gate = GateTypes<G, T, B> && HasInit<G, T, B> && GateForward<G, T, B> && GateBackward<G, T, B>;

/// Returns true if the type G has the interface of a gate. If it does not, the compiler reports the first unmet
/// requirement.
template <class G, class T, class B>
constexpr bool check_gate() {
  GATEFOLD_EXPECT((GateTypes<G, T, B>),
                  "gatefold: a gate needs a member template Plan<T, B> (for example SparsePlan) and Index experts() "
                  "const; see docs/how-to/extending.md#gate")
  GATEFOLD_EXPECT((HasInit<G, T, B>),
                  "gatefold: a gate with Params needs Params<T, B> init<T, B>(ctx, seed) const; "
                  "see docs/how-to/extending.md#gate")
  GATEFOLD_EXPECT(
      (GateForward<G, T, B>),
      "gatefold: a gate needs forward(ctx, params, x, plan, saved, extra) const, with params as const Params<T, B>&, "
      "or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending.md#gate")
  GATEFOLD_EXPECT((GateBackward<G, T, B>),
                  "gatefold: a gate needs backward(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra) "
                  "const; see docs/how-to/extending.md#gate")
  GATEFOLD_EXPECT(
      (!GateForward<G, T, B, Foreign> && !GateBackward<G, T, B, Foreign>),
      "gatefold: forward and backward of a gate must take params as const Params<T, B>&, or as const Nothing<T, B>& if "
      "the gate has no parameters. const auto& would also accept the parameters of another model; "
      "see docs/how-to/extending.md#what-all-policies-share")
  return detail_::hook::gate::all<G, T, B>() && detail_::hook::plan::all<Plan<G, T, B>, T, B>() && parts_fit<G, T, B>();
}

}  // namespace detail_::policy

/// Returns the number of experts of a gate or a scores policy: its function `experts()` if it has one, otherwise its
/// option `experts`, otherwise count_experts of its member `scores`.
Index count_experts(const auto& policy) {
  if constexpr (requires { policy.experts(); }) {
    return policy.experts();
  } else if constexpr (requires { static_cast<Index>(policy.experts); }) {
    return policy.experts;
  } else {
    return count_experts(policy.scores);
  }
}

/// Returns the number of values per item that a scores policy expects: length · model_dim, or model_dim if there is no
/// option `length`. For a wrapper with a member `scores`, for example Jitter, returns item_width of this member.
/// Returns 0 if model_dim is 0, or if the policy has neither an option `model_dim` nor a member `scores`.
Index item_width(const auto& scores) {
  if constexpr (requires { scores.scores; }) {
    return item_width(scores.scores);
  } else if constexpr (requires { scores.length* scores.model_dim; }) {
    return scores.length * scores.model_dim;
  } else if constexpr (requires { scores.model_dim; }) {
    return scores.model_dim;
  } else {
    return 0;
  }
}

/// Returns the number of experts that compute each item (at most `experts`), before a capacity limit drops picks:
/// - If the gate, the gate that it wraps, or its selection (the part that chooses experts) has an option `k` or a
///   constant `picks`, the number is this k, or `picks` if there is no `k`.
/// - For ExpertChoice, the number is the option `factor`, rounded up, because an item has `factor` experts on average.
/// - For a gate with groups of experts (HierarchicalGate), it is the product of the numbers of the two levels.
/// - For any other gate (Dense, SoftMoe), it is the number of all experts.
/// @param part  a gate or a selection
template <class P>
Index active_experts(const P& part, Index experts) {
  if constexpr (requires { part.primary, part.secondary; }) {
    return active_experts(part.primary, part.groups()) * active_experts(part.secondary, experts / part.groups());
  } else if constexpr (requires { part.selection; }) {
    return active_experts(part.selection, experts);
  } else if constexpr (requires { part.gate; }) {
    return active_experts(part.gate, experts);
  } else if constexpr (requires {
                         { part.k } -> std::convertible_to<Index>;
                       }) {
    return std::min<Index>(part.k, experts);
  } else if constexpr (requires {
                         { P::picks } -> std::convertible_to<Index>;
                       }) {
    return std::min<Index>(P::picks, experts);
  } else if constexpr (requires {
                         { part.factor } -> std::convertible_to<double>;
                       }) {
    return part.factor < static_cast<double>(experts) ? static_cast<Index>(std::ceil(part.factor)) : experts;
  } else {
    return experts;
  }
}

/// Stores the number of experts that compute each item (see active_experts), which `summary` of a model reads. The
/// struct has members only for the backend Shapes, whose tensors have shapes but no memory. For all other backends, it
/// is empty.
template <class B>
struct ActiveExperts {
  constexpr explicit ActiveExperts(Index = 0, Index = 0) {}
};
template <>
struct ActiveExperts<Shapes> {
  Index count = 0, experts = 1;
};

}  // namespace gatefold
