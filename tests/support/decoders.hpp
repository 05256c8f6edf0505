#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Finds the tiny decoders of tests/golden/decoders, which make.py has written, and makes targets of their tokens.
namespace gatefold::support {

/// Returns tests/golden/decoders, or the folder in the environment variable GATEFOLD_DECODERS (random_decoders.py).
inline std::filesystem::path decoder_folders() {
  const char* const other = std::getenv("GATEFOLD_DECODERS");
  return other ? std::filesystem::path(other) : std::filesystem::path(GATEFOLD_TEST_DIR) / "golden/decoders";
}

/// Returns the names of the folders, one for each decoder.
inline std::vector<std::string> all_decoders() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(decoder_folders()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  if (names.size() < 10) throw Error("expected at least 10 decoders, got " + std::to_string(names.size()));
  return names;
}

/// Tokens, and for each token the next one in its sequence as its label. The last token of a sequence has no label.
struct NextTokens {
  std::vector<Index> in, label;  // [sequences · length]
  Index length;

  /// @param ids  [sequences · of_each] tokens of sequences of equal length
  NextTokens(const std::vector<Index>& ids, Index of_each) : length(of_each - 1) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Index t = static_cast<Index>(i) % of_each;
      if (t < length) in.push_back(ids[i]);
      if (t > 0) label.push_back(ids[i]);
    }
  }
};

}  // namespace gatefold::support
