#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gatefold/core/philox.hpp"
#include "gatefold/data/text_reader.hpp"
#include "gatefold/data/tokens.hpp"
#include "gatefold/data/vocabulary.hpp"

namespace gatefold::data {

constexpr bool is_stop_word(std::string_view word);
std::vector<std::string_view> words_of(std::string_view line);

/// The word-swap attack on language models: replaces n randomly chosen words of every line of text by the meaningless
/// word `AAA`. Sometimes the last swap is left out, with the probability (2).
///
///     n = max(⌊share · words⌋, 1)                                                                          (1)
///     P(n − 1 swaps) = 1 / (c + 1)                                                                         (2)
///
/// `words` is the number of words of the line. Each swap draws uniformly from the words that can be swapped and are not
/// yet swapped. Before the last swap, c such words are left; "no swap" is then as likely as each of these words.
///
/// Stop words in lower case and the word `AAA` are never swapped. If a line has fewer than n words that can be swapped,
/// all of these are swapped. The text between words stays: `<unk>` becomes `<AAA>`, a word that no vocabulary has.
///
/// Source: papers 001 and 002. The defaults of `share` and `word` are from the code of the authors' laboratory. Words
/// are drawn in the same way as by TextAttack's Augmenter with StopwordModification and fast_augment. (2) is the
/// probability that its last step swaps no word.
struct WordSwap {
  double share = 0.025;
  std::string_view word = "AAA";

  void validate() const { expect(0 <= share && share <= 1, "WordSwap", "share", "0 to 1", share); }

  /// Returns a line of text after the word-swap attack.
  /// @param at  the seed and the step of the random numbers; use one step per line
  std::string line(std::string_view text, Random at) const {
    validate();
    const std::vector<std::string_view> words = words_of(text);
    std::vector<std::string_view> left, swapped;
    for (const std::string_view w : words)
      if (!is_stop_word(w) && w != word) left.push_back(w);
    const auto swaps = std::max<Index>(static_cast<Index>(share * static_cast<double>(words.size())), 1);
    for (Index i = 1; i <= swaps; ++i) {
      const std::size_t choices = left.size() + (i == swaps ? 1 : 0);
      const double u = uniform<double>(at.seed, at.step, static_cast<std::uint64_t>(i));
      const auto pick = static_cast<std::size_t>(u * static_cast<double>(choices));
      if (pick >= left.size()) break;
      swapped.push_back(left[pick]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    std::sort(swapped.begin(), swapped.end(), [](auto a, auto b) { return a.data() < b.data(); });
    std::string attacked;
    const char* from = text.data();
    for (const std::string_view w : swapped) {
      attacked.append(from, w.data()).append(word);
      from = w.data() + w.size();
    }
    return attacked.append(from, text.data() + text.size());
  }
};

/// Reads a text file, applies the word-swap attack to every line, and returns the tokens as numbers (ids). Line n uses
/// step n of the random numbers of `seed`. Use the ids both as inputs and as targets of a language model.
///
/// @param vocabulary  the vocabulary of the original files. A token that it does not contain, for example a word that
///                    the attack has made, gets the id of the unknown token
/// @throws FileError as TextReader does
inline std::vector<TokenId> read_swapped_ids(const std::filesystem::path& file, const Vocabulary& vocabulary,
                                             const WordSwap& swap, Seed seed) {
  std::vector<TokenId> ids;
  Tokenizer tokens(vocabulary.unit(), [&](std::string_view token) { ids.push_back(vocabulary.id(token)); });
  Random at{seed};
  for_each_line(file, [&](std::string_view line) {
    tokens(swap.line(line, at));
    tokens("\n");
    ++at.step;
  });
  return ids;
}

/// English stop words in lower case: frequent words with a grammatical function and little meaning of their own.
///
/// Source: the 179 words that the Natural Language Toolkit lists for English, here sorted by kind.
inline constexpr std::array<std::string_view, 179> kStopWords{
    // Pronouns and possessives.
    "i", "me", "my", "myself", "we", "our", "ours", "ourselves", "you", "your", "yours", "yourself", "yourselves", "he",
    "him", "his", "himself", "she", "her", "hers", "herself", "it", "its", "itself", "they", "them", "their", "theirs",
    "themselves",
    // Stop words that are question words, demonstratives or relative pronouns.
    "what", "which", "who", "whom", "this", "that", "these", "those",
    // Stop words that are forms of "be", "have" and "do", modal verbs, or adverbs.
    "am", "is", "are", "was", "were", "be", "been", "being", "have", "has", "had", "having", "do", "does", "did",
    "doing", "can", "will", "should", "now", "just",
    // Articles and conjunctions.
    "a", "an", "the", "and", "but", "if", "or", "because", "as", "until", "while", "than", "so",
    // Stop words that are prepositions or adverbs, for example of place and time.
    "of", "at", "by", "for", "with", "about", "against", "between", "into", "through", "during", "before", "after",
    "above", "below", "to", "from", "up", "down", "in", "out", "on", "off", "over", "under", "again", "further", "then",
    "once", "here", "there", "when", "where", "why", "how",
    // Quantities and degrees.
    "all", "any", "both", "each", "few", "more", "most", "other", "some", "such", "no", "nor", "not", "only", "own",
    "same", "too", "very",
    // Contractions.
    "you're", "you've", "you'll", "you'd", "she's", "it's", "that'll", "should've",
    // Negated auxiliaries.
    "don't", "aren't", "couldn't", "didn't", "doesn't", "hadn't", "hasn't", "haven't", "isn't", "mightn't", "mustn't",
    "needn't", "shan't", "shouldn't", "wasn't", "weren't", "won't", "wouldn't",
    // Stop words that are parts of contractions, for example "don" and "t". They occur if a tokeniser cuts "don't" at
    // the apostrophe.
    "don", "aren", "couldn", "didn", "doesn", "hadn", "hasn", "haven", "isn", "mightn", "mustn", "needn", "shan",
    "shouldn", "wasn", "weren", "won", "wouldn", "ain", "ma", "d", "ll", "m", "o", "re", "s", "t", "ve", "y"};

/// Returns whether a word is a stop word. The comparison is case-sensitive: "the" is a stop word, "The" is not.
constexpr bool is_stop_word(std::string_view word) {
  return std::find(kStopWords.begin(), kStopWords.end(), word) != kStopWords.end();
}

/// Returns whether a character counts as a letter or digit. These are the ASCII letters and digits, and all characters
/// from U+00C0 on, except ×, ÷, U+2000 to U+2BFF and U+3000 to U+303F. Punctuation outside these ranges, for example
/// Arabic or full-width punctuation, also counts as letters.
constexpr bool is_word_character(char32_t c) {
  if (c < 0x80) return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z');
  return c >= 0xc0 && c != 0xd7 && c != 0xf7 && !(0x2000 <= c && c <= 0x2bff) && !(0x3000 <= c && c <= 0x303f);
}

/// Returns the words of a line of text, in order, split in the same way as the word-swap attack of TextAttack.
///
/// A word is a run of letters and digits that can also contain ' - _ * @ after the first character. So `don't` is one
/// word, the word of `<unk>` is `unk`, and `@-@`, `=` and `,` are not words.
///
/// Source: the tokeniser of TextAttack (Morris et al. 2020, arXiv:2005.05909).
/// @return views into the memory of `line`
inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= line.size();) {
    const CodePoint point = first_code_point(line.substr(at));
    const bool inside = at > begin;
    const bool goes_on =
        point.length > 0 &&
        (is_word_character(point.value) ||
         (inside && point.value < 0x80 && std::string_view("'-_*@").find(line[at]) != std::string_view::npos));
    if (!goes_on && inside) words.push_back(line.substr(begin, at - begin));
    at += std::max<std::size_t>(point.length, 1);
    if (!goes_on) begin = at;
  }
  return words;
}

}  // namespace gatefold::data
