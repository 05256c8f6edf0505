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

/// Checks the gates of mixtures outside ExpertParallel. Every shard holds the whole mixture, and its gate routes only
/// the items of that shard.
namespace gatefold::dist {

/// True if a selection chooses the picks of an item only from the candidates of that item, without noise. Specialise it
/// for your own selection.
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

/// `is_enough` is true if a gate that routes only the items of one shard gives each item the same picks as a gate that
/// routes the whole batch.
template <class GateT, class B>
struct Composed {
  static constexpr bool is_enough = false;
};
/// Composed for a gate that is made of parts. Every part must route each item independently of the others.
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
