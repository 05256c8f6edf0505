#pragma once

#include <string_view>
#include <tuple>

#include "gatefold/distributed/gate_needs.hpp"
#include "gatefold/gate/hierarchical_gate.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/gate/weight_on_input.hpp"
#include "gatefold/policy/hooks.hpp"

/// Checks the gates (routers) of mixtures outside of an ExpertParallel. Every shard holds all experts of such a
/// mixture, and its gate routes only the items of its shard. This is an error for gates that must compare all items of
/// the batch.
namespace gatefold::dist {

/// True if a selection (the part of a gate that chooses experts) chooses the experts of an item only from values of
/// that item, without noise. Specialise it for your own selection.
template <class SelectionT>
inline constexpr bool picks_alone = false;
template <>
inline constexpr bool picks_alone<TopK> = true;
template <>
inline constexpr bool picks_alone<Dense> = true;
template <>
inline constexpr bool picks_alone<ScheduledTopK> = true;
template <>
inline constexpr bool picks_alone<SigmoidBias> = true;  // the biases follow the loads of all shards, which are added up

namespace local {

/// The member `is_enough` is true if a gate that routes only the items of one shard chooses the same experts for each
/// item as a gate that routes the whole batch.
template <class GateT, class B>
struct Composed {
  static constexpr bool is_enough = false;
};
/// For a gate that is made of parts, `is_enough` is true if every part routes each item independently of the other
/// items.
template <class S, class M, class Sel, class... A, class B>
struct Composed<ComposedGate<S, M, Sel, A...>, B> {
  static constexpr bool is_enough = sizeof...(A) == 0 && !detail_::named::Extra<S>() &&
                                    detail_::hook::mixing::rows<M, float, B>() && picks_alone<Sel>;
};
template <class PrimaryT, class SecondaryT, class B>
struct Composed<HierarchicalGate<PrimaryT, SecondaryT>, B> {
  static constexpr bool is_enough = Composed<PrimaryT, B>::is_enough && Composed<SecondaryT, B>::is_enough;
};
template <class GateT, class B>
struct Routed {
  static constexpr bool is_enough =
      global::sees<GateT, float, B>() == global::Sees::own || Composed<GateT, B>::is_enough;
};
template <class GateT, class B>
struct Routed<WeightOnInput<GateT>, B> : Routed<GateT, B> {};
template <class GateT, class B>
constexpr bool is_enough() {
  return Routed<GateT, B>::is_enough;
}

/// Checks at compile time the gates of all mixtures in a model's parameters, except mixtures inside an ExpertParallel.
/// A gate that depends on the whole batch does not compile.
template <class B, class P>
void check_gates(const P& params) {
  if constexpr (detail_::pack::is_vector<P>) {
    for (const auto& one : params) check_gates<B>(one);
  } else if constexpr (detail_::pack::is_tuple<P>) {
    std::apply([](const auto&... part) { (check_gates<B>(part), ...); }, params);
  } else if constexpr (!detail_::pack::is_tensor<P> && !detail_::pack::is_sharded<P>) {
    if constexpr (requires { typename P::TaskGate; })
      GATEFOLD_REQUIRE((is_enough<typename P::TaskGate, B>()),
                       "gatefold: on shards the gates of this MultiGate would read only the items of their shard, but "
                       "auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: "
                       "use gates without them; see docs/how-to/distributed.md#gates-on-shards");
    if constexpr (requires { typename P::Gate; })
      GATEFOLD_REQUIRE((is_enough<typename P::Gate, B>()),
                       "gatefold: on shards the gate of this Mixture would read only the items of its shard, but "
                       "auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: "
                       "use ExpertParallel{mixture, &shard}; see docs/how-to/distributed.md#gates-on-shards");
    P::each([](std::string_view, const auto& part) { check_gates<B>(part); }, params);
  }
}

}  // namespace local
}  // namespace gatefold::dist
