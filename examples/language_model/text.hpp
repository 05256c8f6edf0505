#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <gatefold/data/text_reader.hpp>
#include <gatefold/data/vocabulary.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace language {

using gatefold::data::TokenId;
using gatefold::data::Unit;
using gatefold::data::Vocabulary;

/// A text in three parts: for training, validation and test. The vocabulary is collected from all three, as in papers
/// 001 and 002.
struct Text {
  Vocabulary vocabulary{};
  std::vector<TokenId> train{}, valid{}, test{};

  /// Returns a hash of vocabulary and text.
  std::uint64_t hash() const {
    std::uint64_t h = 14695981039346656037u;  // FNV-1a hash of numbers instead of bytes
    const auto add = [&](std::uint64_t value) { h = (h ^ value) * 1099511628211u; };
    for (const std::string& token : vocabulary.tokens()) {
      for (const char c : token) add(static_cast<unsigned char>(c));
      add(256);
    }
    for (const auto* part : {&train, &valid, &test}) {
      for (const TokenId id : *part) add(static_cast<std::uint64_t>(id));
      add(part->size());
    }
    return h;
  }
};

inline Unit unit(const Options& o) { return o.unit == "word" ? Unit::word : Unit::character; }

/// Returns true if the bytes are valid UTF-8.
inline bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t length = gatefold::data::first_code_point(bytes).length;
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

/// Appends the tokens of one line to `ids`. If `ends` is true, also appends the token for the end of the line; if it is
/// false, the line is incomplete.
inline void append(std::string_view line, const Vocabulary& vocabulary, std::vector<TokenId>& ids, bool ends = true) {
  gatefold::data::Tokenizer tokens(vocabulary.unit(),
                                   [&](std::string_view token) { ids.push_back(vocabulary.id(token)); });
  tokens(line);
  if (ends) {
    tokens("\n");
  } else if (vocabulary.unit() == Unit::word) {
    tokens(" ");
  }
}

/// Converts tokens back to text.
inline std::string written(const Vocabulary& vocabulary, std::span<const TokenId> ids) {
  std::string text;
  for (const TokenId id : ids) {
    if (id == vocabulary.end_of_line()) {
      text += '\n';
      continue;
    }
    if (vocabulary.unit() == Unit::word && !text.empty() && text.back() != '\n') text += ' ';
    text += vocabulary.token(id);
  }
  return text;
}

/// Reads train.txt, valid.txt and test.txt of a folder, or splits the lines of one file: the first lines are the
/// training text, the last lines are the validation and test texts.
/// @param known  the vocabulary of a model that reads a different text; tokens outside it become the unknown token
/// @throws FileError if the folder lacks one of the three texts. Also throws what the readers of gatefold/data throw
inline Text read_text(const Options& o, const std::optional<Vocabulary>& known = {}) {
  using namespace gatefold::data;
  const std::filesystem::path folder(o.data), file(o.text);
  if (o.text.empty()) {
    const std::vector<std::filesystem::path> parts{folder / "train.txt", folder / "valid.txt", folder / "test.txt"};
    for (const auto& part : parts)
      if (!std::filesystem::exists(part))
        throw gatefold::FileError(part.string() +
                                  ": missing: run `bash examples/text/prepare.sh`, which makes the texts of " +
                                  "the Bible in build/text, or use --text FILE for another text");
    Text text{known ? *known : read_vocabulary(parts, unit(o), o.threshold)};
    text.train = read_ids(parts[0], text.vocabulary);
    text.valid = read_ids(parts[1], text.vocabulary);
    text.test = read_ids(parts[2], text.vocabulary);
    return text;
  }
  Text text{known ? *known : read_vocabulary({file}, unit(o), o.threshold)};
  Index lines = 0, line = 0;
  for_each_line(file, [&](std::string_view) { ++lines; });
  for_each_line(file, [&](std::string_view characters) {
    const Part part = Split{}.part(line++, lines);
    append(characters, text.vocabulary,
           part == Part::train   ? text.train
           : part == Part::valid ? text.valid
                                 : text.test);
  });
  return text;
}

}  // namespace language
