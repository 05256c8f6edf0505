#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <gatefold/data/text_reader.hpp>
#include <gatefold/data/vocabulary.hpp>
#include <gatefold/papers/word_swap.hpp>
#include <string>
#include <vector>

#include "../support/run.hpp"

namespace studies::lm {

using gatefold::Seed;
using gatefold::data::TokenId;

/// A text of words in three parts: training, validation and test. Of the validation and the test part it also has a
/// copy after the word-swap attack of papers 001 and 002. All runs use the same copy, so that differences come from the
/// models.
struct Text {
  gatefold::data::Vocabulary vocabulary{};
  std::vector<TokenId> train{}, valid{}, test{}, valid_attacked{}, test_attacked{};

  /// Returns the properties of the text on which results depend.
  Json json() const {
    std::uint64_t h = 14695981039346656037u;  // FNV-1a hash of tokens instead of bytes
    for (const auto* part : {&train, &valid, &test, &valid_attacked, &test_attacked}) {
      for (const TokenId id : *part) h = (h ^ static_cast<std::uint64_t>(id)) * 1099511628211u;
      h = (h ^ part->size()) * 1099511628211u;
    }
    return {{"vocabulary", vocabulary.size()}, {"tokens", train.size()}, {"hash", h}};
  }
};

/// @param folder     folder that contains train.txt, valid.txt and test.txt
/// @param threshold  words that occur less often in all three parts together become the unknown word, as in the papers
/// @throws FileError if the folder has no texts. Also throws what the readers of gatefold/data throw
inline Text read_text(const std::filesystem::path& folder, Index threshold) {
  using namespace gatefold::data;
  const std::vector<std::filesystem::path> parts{folder / "train.txt", folder / "valid.txt", folder / "test.txt"};
  for (const auto& part : parts)
    if (!std::filesystem::exists(part))
      throw gatefold::FileError(part.string() +
                                ": missing: run `bash examples/text/prepare.sh`, which makes the texts");
  Text text{read_vocabulary(parts, Unit::word, threshold)};
  const Seed attack{1};
  text.train = read_ids(parts[0], text.vocabulary);
  text.valid = read_ids(parts[1], text.vocabulary);
  text.test = read_ids(parts[2], text.vocabulary);
  text.valid_attacked = read_swapped_ids(parts[1], text.vocabulary, WordSwap{}, attack.fork(0));
  text.test_attacked = read_swapped_ids(parts[2], text.vocabulary, WordSwap{}, attack.fork(1));
  return text;
}

}  // namespace studies::lm
