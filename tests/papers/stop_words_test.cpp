#include "gatefold/papers/stop_words.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string_view>

using namespace gatefold::data;

TEST_CASE("kStopWords: the 179 words of NLTK, distinct and lower-case") {
  CHECK(std::set<std::string_view>(kStopWords.begin(), kStopWords.end()).size() == 179);
  for (const std::string_view word : kStopWords)
    CHECK(word.find_first_not_of("abcdefghijklmnopqrstuvwxyz'") == std::string_view::npos);
}

TEST_CASE("is_stop_word: compares the exact spelling") {
  for (const char* word : {"the", "i", "of", "don't", "don", "t", "themselves", "wouldn't", "that'll"})
    CHECK(is_stop_word(word));
  for (const char* word : {"The", "I", "cat", "unk", "", "would", "may", "the ", "one"})
    CHECK_FALSE(is_stop_word(word));
}
