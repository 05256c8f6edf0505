#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace gatefold::data {

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

}  // namespace gatefold::data
