#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <gatefold/metric/load.hpp>
#include <vector>

#include "numbers.hpp"

namespace studies {

/// Measures the routing of a mixture, and the norm of its output, on the items of one or more forward passes. The
/// measurements are for log.jsonl.
class RoutingMeasures {
 public:
  /// Adds the items of the last forward pass.
  /// @param saved  the state of the mixture, saved by this forward pass
  /// @param y      [N, outputs]  the output of the mixture
  template <class SavedT>
  void add(gatefold::Cpu::Context& ctx, const SavedT& saved, gatefold::View<const float, 2, gatefold::Cpu> y) {
    const auto items = static_cast<double>(y.extent(0));
    items_ += items;
    entropy_ += items * gatefold::metric::entropy(ctx, saved.gate.probabilities.view());
    const std::vector<Index> load = gatefold::metric::load(ctx, saved.plan).counts;
    load_.resize(load.size());
    std::transform(load.begin(), load.end(), load_.begin(), load_.begin(), std::plus{});
    for (Index n = 0; n < y.extent(0); ++n) {
      double squares = 0;
      for (Index j = 0; j < y.extent(1); ++j) squares += static_cast<double>(y(n, j)) * static_cast<double>(y(n, j));
      norm_ += std::sqrt(squares);
    }
  }
  /// Appends the measurements to the lists of `log`: the mean entropy of an item's routing probabilities in nats, the
  /// deviation of the experts' loads divided by their mean, and the mean norm of the output.
  void append(Json& log) const {
    log["routing_entropy"].push_back(rounded(entropy_ / items_));
    log["load_variation"].push_back(rounded(gatefold::metric::Load{load_}.coefficient_of_variation()));
    log["norm"].push_back(rounded(norm_ / items_));
  }

 private:
  double items_ = 0, entropy_ = 0, norm_ = 0;  // number of items, and sums over them
  std::vector<Index> load_;                    // [E]
};

}  // namespace studies
