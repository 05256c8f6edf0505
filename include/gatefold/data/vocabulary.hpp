#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gatefold/data/tokens.hpp"

namespace gatefold::data {

/// The number of a token in a vocabulary. It has half the size of an Index, because a corpus has many tokens.
using TokenId = std::int32_t;

/// The token that replaces all tokens which are not in the vocabulary.
inline constexpr std::string_view kUnknown = "<unk>";

/// A list of distinct tokens with the numbers 0 to size() − 1.
///
/// A vocabulary always contains the tokens for the end of a line and for unknown tokens. If a list of tokens lacks
/// them, they are added at its end.
class Vocabulary {
 public:
  explicit Vocabulary(Unit unit = Unit::word) : Vocabulary(unit, {}) {}
  /// Creates a vocabulary from a list of tokens.
  /// @param tokens  all tokens, in the order of their numbers
  /// @throws ArgumentError if a token appears twice
  Vocabulary(Unit unit, std::vector<std::string> tokens) : unit_(unit), tokens_(std::move(tokens)) {
    const auto at = [&](std::size_t i) { return static_cast<TokenId>(i); };
    ids_.reserve(tokens_.size() + 2);
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      expect(ids_.emplace(tokens_[i], at(i)).second, "Vocabulary", "tokens", "distinct tokens",
             Joined{"two of ", tokens_[i]});
    for (const std::string_view token : {kEndOfLine, kUnknown})
      if (ids_.emplace(token, at(tokens_.size())).second) tokens_.emplace_back(token);
    expect(tokens_.size() <= static_cast<std::size_t>(std::numeric_limits<TokenId>::max()), "Vocabulary", "tokens",
           "fewer than 2^31", tokens_.size());
    unknown_ = ids_.find(kUnknown)->second;
  }

  Unit unit() const { return unit_; }
  Index size() const { return static_cast<Index>(tokens_.size()); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// Returns the token with the number `id`.
  /// @throws ArgumentError unless 0 <= id < size()
  const std::string& token(TokenId id) const {
    expect(0 <= id && id < size(), "Vocabulary.token", "id", Joined{"0 to ", size() - 1}, id);
    return tokens_[static_cast<std::size_t>(id)];
  }

  TokenId end_of_line() const { return ids_.find(kEndOfLine)->second; }
  TokenId unknown() const { return unknown_; }
  /// Returns the number of a token, or the number of the unknown token if the token is not in the vocabulary.
  TokenId id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? unknown_ : found->second;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view token) const { return std::hash<std::string_view>()(token); }
  };

  Unit unit_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_{};
  TokenId unknown_ = 0;
};

/// Returns the vocabulary of some text files: all tokens in them, in the order in which they first appear.
///
/// Source: papers 001 and 002, which use all three parts of WikiText-103 and no threshold: 267,735 words.
/// @param threshold  tokens that appear fewer than `threshold` times in all files together are left out; read_ids then
///                   replaces them by the unknown token
/// @throws FileError if a file cannot be read or is not UTF-8 (TextReader); ArgumentError unless threshold >= 1
inline Vocabulary read_vocabulary(const std::vector<std::filesystem::path>& files, Unit unit, Index threshold = 1) {
  expect(threshold >= 1, "read_vocabulary", "threshold", "at least 1", threshold);
  std::vector<std::string> tokens;
  std::vector<Index> count;
  std::unordered_map<std::string, std::size_t> place;
  std::string key;
  for (const std::filesystem::path& file : files)
    for_each_token(file, unit, [&](std::string_view token) {
      key = token;
      const auto [found, first] = place.try_emplace(key, tokens.size());
      if (first) {
        tokens.push_back(key);
        count.push_back(0);
      }
      ++count[found->second];
    });
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (count[i] >= threshold || tokens[i] == kEndOfLine || tokens[i] == kUnknown) kept.push_back(std::move(tokens[i]));
  return Vocabulary(unit, std::move(kept));
}

/// Returns the tokens of a text file as their numbers in a vocabulary.
///
/// @throws FileError if the file cannot be read or is not UTF-8 (TextReader)
/// @cost   4 bytes per token
inline std::vector<TokenId> read_ids(const std::filesystem::path& file, const Vocabulary& vocabulary) {
  std::vector<TokenId> ids;
  for_each_token(file, vocabulary.unit(), [&](std::string_view token) { ids.push_back(vocabulary.id(token)); });
  return ids;
}

}  // namespace gatefold::data
