#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <gatefold/core/error.hpp>
#include <gatefold/data/text_reader.hpp>
#include <gatefold/data/vocabulary.hpp>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/run.hpp"

namespace studies::classification {

using gatefold::FileError;
using gatefold::data::TokenId;
using Ids = std::vector<Index>;

/// A sentence with the number of its class.
struct Labelled {
  std::vector<std::string> words{};
  Index label = 0;
};

/// Reads sentences from a file in the format of SST-2: a header line, then one line "sentence<tab>label" for each
/// sentence. Words are separated by spaces. Labels are numbers from 0 on.
/// @param classes  all labels must be below this number
/// @throws FileError with file and line if a line has another format, or if there is no sentence
inline std::vector<Labelled> read_labelled(const std::filesystem::path& file, Index classes = 1000) {
  std::vector<Labelled> all;
  Index number = 0;
  const auto refuse = [&](const std::string& what, const std::string& expected, std::string_view got) {
    throw FileError(file.string() + ": line " + std::to_string(number) + ": " + what + ": expected " + expected +
                    ", got \"" + std::string(got.substr(0, 60)) + '"');
  };
  gatefold::data::for_each_line(file, [&](std::string_view line) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1) {
      if (line != "sentence\tlabel") refuse("header", "\"sentence<tab>label\"", line);
      return;
    }
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos || line.find('\t', tab + 1) != std::string_view::npos)
      refuse("columns", "two, separated by one tab", line);
    Labelled one;
    const auto add = [&](std::string_view word) { one.words.emplace_back(word); };
    gatefold::data::Tokenizer words(gatefold::data::Unit::word, add);
    words(line.substr(0, tab));
    words(" ");
    if (one.words.empty()) refuse("sentence", "at least one word", line);
    const std::string_view label = line.substr(tab + 1);
    const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), one.label);
    if (error != std::errc() || end != label.data() + label.size() || one.label < 0 || one.label >= classes)
      refuse("label", "a whole number from 0 to " + std::to_string(classes - 1), label);
    all.push_back(std::move(one));
  });
  if (all.empty()) throw FileError(file.string() + ": expected a header and at least one sentence, got none");
  return all;
}

/// Returns the words of a text's vocabulary, followed by words that only sentences have.
/// @param threshold  words of sentences that occur less often are left out, unless the text has them
inline gatefold::data::Vocabulary with_words_of(const gatefold::data::Vocabulary& text,
                                                const std::vector<Labelled>& sentences, Index threshold) {
  std::map<std::string, Index> count;
  for (const Labelled& one : sentences)
    for (const std::string& word : one.words) ++count[word];
  std::vector<std::string> tokens = text.tokens();
  for (const auto& [word, times] : count)
    if (times >= threshold && word != gatefold::data::kUnknown && text.id(word) == text.unknown())
      tokens.push_back(word);
  return {text.unit(), std::move(tokens)};
}

/// Sentences as numbers of words. Only the first `length` words of a sentence are kept.
struct Sentences {
  std::vector<std::vector<TokenId>> words{};
  Ids labels{};

  Sentences() = default;
  Sentences(const std::vector<Labelled>& from, const gatefold::data::Vocabulary& vocabulary, Index length) {
    for (const Labelled& one : from) {
      words.emplace_back();
      for (const std::string& word : one.words)
        if (static_cast<Index>(words.back().size()) < length) words.back().push_back(vocabulary.id(word));
      labels.push_back(one.label);
    }
  }
  Index size() const { return static_cast<Index>(labels.size()); }
};

/// Some sentences as sequences of one length, the number of words in the longest of these sentences. Shorter sentences
/// are followed by padding. In a causal model, no word depends on the padding after it.
struct Batch {
  Index length = 0;
  Ids words{};    // [G, length]
  Ids targets{};  // [G, length] the label at the last word of each sentence, −1 at other words and at padding
  Ids last{};     // [G] the row of the last word of each sentence

  /// @param which    the sentences of this batch, by their places in `all`
  /// @param padding  the number of the word that is used as padding
  Batch(const Sentences& all, std::span<const Index> which, TokenId padding) {
    const auto of = [&](Index place) -> const auto& { return all.words[static_cast<std::size_t>(place)]; };
    for (const Index place : which) length = std::max(length, static_cast<Index>(of(place).size()));
    for (const Index place : which) {
      const auto begin = static_cast<Index>(words.size());
      words.insert(words.end(), of(place).begin(), of(place).end());
      words.resize(static_cast<std::size_t>(begin + length), padding);
      last.push_back(begin + static_cast<Index>(of(place).size()) - 1);
      targets.resize(words.size(), -1);
      targets[static_cast<std::size_t>(last.back())] = all.labels[static_cast<std::size_t>(place)];
    }
  }
};

/// The text for pre-training and the sentences with labels, as numbers of one vocabulary.
struct Data {
  gatefold::data::Vocabulary vocabulary{};
  std::vector<TokenId> train{}, valid{};  // of the text
  Sentences learnt{}, tested{};
  Index classes = 0;

  /// Returns the number of sentences of each class in the test file.
  Ids count() const {
    Ids counts(static_cast<std::size_t>(classes), 0);
    for (const Index label : tested.labels) ++counts[static_cast<std::size_t>(label)];
    return counts;
  }
  /// Returns the properties of the data on which results depend.
  Json json() const {
    std::uint64_t h = 14695981039346656037u;  // FNV-1a hash of numbers instead of bytes
    const auto add = [&](const auto& numbers) {
      for (const auto n : numbers) h = (h ^ static_cast<std::uint64_t>(n)) * 1099511628211u;
      h = (h ^ numbers.size()) * 1099511628211u;
    };
    add(train);
    add(valid);
    for (const Sentences* part : {&learnt, &tested}) {
      for (const auto& words : part->words) add(words);
      add(part->labels);
    }
    return {{"vocabulary", vocabulary.size()}, {"tokens", train.size()},  {"classes", classes},
            {"sentences", learnt.size()},      {"tested", tested.size()}, {"hash", h}};
  }
};

/// Reads the text for pre-training, train.txt and valid.txt of a folder, and two files of sentences.
/// @param length     the number of words of a sentence that are kept
/// @param threshold  words that occur less often in the text are replaced by the unknown word
/// @param of_sentences  words that are not in the text and occur less often than this in the training sentences are
///   replaced by the unknown word
/// @throws FileError if a file is missing or has another format, or if the training sentences have only one class
inline Data read_data(const std::filesystem::path& text, const std::filesystem::path& sentences,
                      const std::filesystem::path& tested, Index length, Index threshold, Index of_sentences) {
  using namespace gatefold::data;
  const std::vector<std::filesystem::path> parts{text / "train.txt", text / "valid.txt"};
  for (const auto& file : {parts[0], parts[1], sentences, tested})
    if (!std::filesystem::exists(file))
      throw FileError(file.string() + ": missing: run `bash examples/run.sh finetune`, which makes the default files");
  const std::vector<Labelled> learnt = read_labelled(sentences);
  Data data;
  for (const Labelled& one : learnt) data.classes = std::max(data.classes, one.label + 1);
  if (data.classes < 2) throw FileError(sentences.string() + ": labels: expected at least two classes, got only 0");
  data.vocabulary = with_words_of(read_vocabulary(parts, Unit::word, threshold), learnt, of_sentences);
  data.train = read_ids(parts[0], data.vocabulary);
  data.valid = read_ids(parts[1], data.vocabulary);
  data.learnt = Sentences(learnt, data.vocabulary, length);
  data.tested = Sentences(read_labelled(tested, data.classes), data.vocabulary, length);
  return data;
}

}  // namespace studies::classification
