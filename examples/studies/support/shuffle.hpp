#pragma once

#include <cstddef>
#include <cstdint>
#include <gatefold/core/philox.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "common.hpp"

namespace studies {

/// Shuffles the items of an epoch. The order depends only on the seed and the epoch.
inline void shuffle(std::vector<Index>& order, gatefold::Seed seed, Index epoch) {
  std::iota(order.begin(), order.end(), Index(0));
  for (std::size_t i = order.size(); i > 1; --i) {
    const double u = gatefold::uniform<double>(seed, static_cast<std::uint64_t>(epoch), i);
    std::swap(order[i - 1], order[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
}

}  // namespace studies
