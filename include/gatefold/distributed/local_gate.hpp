#pragma once

#include <string_view>
#include <tuple>

#include "gatefold/core/config.hpp"
#include "gatefold/distributed/global_gate.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/hooks.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"

/// A check of gates outside ExpertParallel: all shards hold such a mixture whole, and its gate sees only the items of
/// its shard.
namespace gatefold::dist {

/// Whether a selection picks for an item from that item's candidates only, without noise. Specialise it for your own
/// selection.
template <class SelectionT>
inline constexpr bool picks_alone = false;
template <>
inline constexpr bool picks_alone<TopK> = true;
template <>
inline constexpr bool picks_alone<Dense> = true;
template <>
inline constexpr bool picks_alone<ScheduledTopK> = true;
template <>
inline constexpr bool picks_alone<SigmoidBias> = true;  // counts for the biases are sums over all shards

namespace local {

/// Whether a gate that sees the items of one shard gives each item the picks of a gate that sees the whole batch.
template <class GateT, class B>
struct Composed {
  static constexpr bool is_enough = false;
};
/// For a gate made of parts: every part must have this property.
template <class S, class M, class Sel, class... A, class B>
struct Composed<ComposedGate<S, M, Sel, A...>, B> {
  static constexpr bool is_enough = sizeof...(A) == 0 && !detail_::named::Extra<S>() &&
                                    detail_::hook::mixing::rows<M, float, B>() && picks_alone<Sel>;
};
template <class GateT, class B>
constexpr bool is_enough() {
  return global::sees<GateT, float, B>() == global::Sees::own || Composed<GateT, B>::is_enough;
}

/// Checks the gates of all mixtures whose parameters are in the pack, except mixtures inside an ExpertParallel.
template <class B, class P>
void check_gates(const P& params) {
  if constexpr (detail_::pack::is_vector<P>) {
    for (const auto& one : params) check_gates<B>(one);
  } else if constexpr (detail_::pack::is_tuple<P>) {
    std::apply([](const auto&... part) { (check_gates<B>(part), ...); }, params);
  } else if constexpr (!detail_::pack::is_tensor<P> && !detail_::pack::is_sharded<P>) {
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
