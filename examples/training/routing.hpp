#pragma once

#include <algorithm>
#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace training {

using gatefold::Index;

/// What a mixture did with some items.
struct Routing {
  double entropy = 0;          // mean over items of that of their probabilities, before top-K
  std::vector<Index> load{};   // [E] picks of each expert
  std::vector<Index> picks{};  // [N, K] experts of each item, best first
};

/// Of each mixture that a pass kept, in the order of depth. Soft MoE's, whose experts share every item, and those of
/// layers that run again in backward are not among them.
template <class C, class S>
std::vector<Routing> routing(C& ctx, const S& saved, Index k) {
  std::vector<Routing> all;
  gatefold::for_each_mixture(saved, [&](const auto& mixture) {
    if constexpr (requires { mixture.plan.item_slots; }) {
      if (mixture.plan.items() <= 0) return;  // of an evaluation that the rule did not make
      const auto picks = gatefold::metric::picks(ctx, mixture.plan, k);
      all.push_back({gatefold::metric::entropy(ctx, mixture.gate.probabilities.view()),
                     gatefold::metric::load(ctx, mixture.plan).counts,
                     {picks.data(), picks.data() + picks.size()}});
    }
  });
  return all;
}

/// What metrics keep of them, a layer each: entropy, load, the picks of the first items and, where they are known from
/// `before`, the share of these items whose experts are others now.
///
///     [{"entropy":1.7,"load":[12,4],"picks":[0,1,…],"fluctuation":0.1},…]
inline nlohmann::ordered_json to_json(const std::vector<Routing>& layers, const nlohmann::ordered_json& before,
                                      Index k) {
  using Json = nlohmann::ordered_json;
  constexpr std::size_t most = 128;  // items whose picks are kept
  Json all = Json::array();
  for (const Routing& layer : layers) {
    Json now{{"entropy", layer.entropy}, {"load", layer.load}};
    const std::size_t count = std::min(layer.picks.size(), most * static_cast<std::size_t>(k));
    const std::vector<Index> picks(layer.picks.begin(), layer.picks.begin() + static_cast<std::ptrdiff_t>(count));
    now["picks"] = picks;
    if (all.size() < before.size()) {
      const auto old = before[all.size()]["picks"].get<std::vector<Index>>();
      const auto items = [&](const std::vector<Index>& of) {
        return gatefold::View<const Index, 2, gatefold::Cpu>(of.data(), static_cast<Index>(of.size()) / k, k);
      };
      gatefold::Cpu::Context ctx(1);
      now["fluctuation"] = gatefold::metric::fluctuation(ctx, items(old), items(picks)).set;
    }
    all.push_back(std::move(now));
  }
  return all;
}

}  // namespace training
