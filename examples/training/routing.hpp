#pragma once

#include <cstddef>
#include <gatefold/policies.hpp>
#include <vector>

#include "host.hpp"

namespace training {

using gatefold::Index;

/// The routing of a mixture on some items.
struct Routing {
  double entropy = 0;          // mean entropy of an item's probabilities, before top-K
  std::vector<Index> load{};   // [E] picks of each expert
  std::vector<Index> picks{};  // [N, K] the K experts of each item, best first
};

/// Returns the routing of each mixture of a forward pass, in the order of depth. Leaves out Soft MoE, whose experts
/// share every item, and mixtures in layers that backward recomputes.
template <class C, class S>
std::vector<Routing> routing(C& ctx, const S& saved, Index k) {
  std::vector<Routing> all;
  gatefold::for_each_mixture(saved, [&](const auto& mixture) {
    if constexpr (requires { mixture.plan.item_slots; }) {
      // A plan without items belongs to an evaluation of the branch that the update rule has not made.
      if (mixture.plan.items() <= 0) return;
      all.push_back({gatefold::metric::entropy(ctx, mixture.gate.probabilities.view()),
                     gatefold::metric::load(ctx, mixture.plan).counts,
                     to_host(ctx, gatefold::metric::picks(ctx, mixture.plan, k))});
    }
  });
  return all;
}

/// Adds the routing of further items, `more`, to `all`, the routing of the items so far. `all` can be empty.
inline void join(std::vector<Routing>& all, const std::vector<Routing>& more) {
  if (all.empty()) all.resize(more.size());
  for (std::size_t l = 0; l < more.size(); ++l) {
    Routing& layer = all[l];
    const auto before = static_cast<double>(layer.picks.size()), now = static_cast<double>(more[l].picks.size());
    if (now > 0) layer.entropy = (before * layer.entropy + now * more[l].entropy) / (before + now);
    layer.load.resize(more[l].load.size());
    for (std::size_t e = 0; e < layer.load.size(); ++e) layer.load[e] += more[l].load[e];
    layer.picks.insert(layer.picks.end(), more[l].picks.begin(), more[l].picks.end());
  }
}

}  // namespace training
