#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <gatefold/core/types.hpp>
#include <numeric>
#include <string>
#include <vector>

namespace fashion {

/// Prints the number of picks of each expert, and its percentage of the picks of the layer:
///
///     layer        expert 0        expert 1
///         0   33012  55.0 %   26988  45.0 %
///
/// @param picks  [layer][expert] number of picks
inline void print_picks(const std::vector<std::vector<gatefold::Index>>& picks, std::FILE* out = stdout) {
  std::size_t experts = 0, digits = 6;
  for (const auto& layer : picks) {
    experts = std::max(experts, layer.size());
    for (const gatefold::Index n : layer) digits = std::max(digits, std::to_string(n).size());
  }
  const int count = static_cast<int>(digits), column = count + 9;
  std::string header = "layer";
  for (std::size_t e = 0; e < experts; ++e) {
    const std::string name = "expert " + std::to_string(e);
    header +=
        std::string(2 + static_cast<std::size_t>(column) - std::min<std::size_t>(name.size(), column), ' ') + name;
  }
  std::fprintf(out, "%s\n", header.c_str());
  for (std::size_t l = 0; l < picks.size(); ++l) {
    const double total = static_cast<double>(std::accumulate(picks[l].begin(), picks[l].end(), gatefold::Index(0)));
    std::fprintf(out, "%5zu", l);
    for (const gatefold::Index n : picks[l]) {
      const double percent = total > 0 ? 100.0 * static_cast<double>(n) / total : 0.0;
      std::fprintf(out, "  %*lld  %5.1f %%", count, static_cast<long long>(n), percent);
    }
    std::fputc('\n', out);
  }
  std::fflush(out);
}

}  // namespace fashion
