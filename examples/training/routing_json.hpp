#pragma once

#include <algorithm>
#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "routing.hpp"

namespace training {

/// Returns the routing of each layer for the metrics: entropy, load, and the picks of the first 128 items. If `before`
/// has earlier picks, also returns the share of these items whose set of experts has changed since then
/// ("fluctuation").
///
///     [{"entropy":1.7,"load":[12,4],"picks":[0,1,…],"fluctuation":0.1},…]
inline nlohmann::ordered_json to_json(const std::vector<Routing>& layers, const nlohmann::ordered_json& before,
                                      Index k) {
  using Json = nlohmann::ordered_json;
  constexpr std::size_t most = 128;
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
