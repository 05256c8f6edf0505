#pragma once

#include <concepts>
#include <type_traits>

#include "gatefold/policy/misuse.hpp"
#include "gatefold/policy/probe.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Interface of gates. A gate chooses the experts of each item and writes them to a plan. It is a struct of options
/// with these members:
///
///     template <class T, class B> using Plan = SparsePlan<T, B>;             // or a different plan
///     Index experts() const;
///     forward (ctx, params, x, plan, saved, extra) const;                    // writes plan and saved
///     backward(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra) const;   // adds to dx and grads
///
/// Optional members are Params with init(ctx, seed), and the members in policy/hooks.hpp.
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
}  // namespace gatefold
