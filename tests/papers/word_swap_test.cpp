#include "gatefold/papers/word_swap.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/pass.hpp"
#include "support/text_file.hpp"

using namespace gatefold;
using namespace gatefold::data;
using gatefold::support::message_of;
using gatefold::support::TextFile;

namespace {

using Words = std::vector<std::string_view>;

std::string swapped(const WordSwap& swap, std::string_view line, std::uint64_t step = 0) {
  return swap.line(line, {Seed{5}, step});
}
constexpr int kLines = 4'000;
/// Returns how often each result occurs among kLines lines.
std::map<std::string, int> results(const WordSwap& swap, std::string_view line) {
  std::map<std::string, int> count;
  for (std::uint64_t step = 0; step < kLines; ++step) ++count[swapped(swap, line, step)];
  return count;
}
/// Checks that exactly these results occur, equally often: χ² is below its mean plus 5 standard deviations.
void check_even(const std::map<std::string, int>& count, const std::vector<std::string>& expected) {
  const double share = static_cast<double>(kLines) / static_cast<double>(expected.size());
  double chi_squared = 0;
  for (const std::string& text : expected) {
    CAPTURE(text);
    REQUIRE(count.contains(text));
    chi_squared += (count.at(text) - share) * (count.at(text) - share) / share;
  }
  CHECK(count.size() == expected.size());
  const double freedom = static_cast<double>(expected.size()) - 1;
  CHECK(chi_squared <= freedom + 5 * std::sqrt(2 * freedom));
}
int count_of(std::string_view text, std::string_view word) {
  int n = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("WordSwap: words begin with a letter or digit") {
  CHECK(words_of("The cat sat.") == Words{"The", "cat", "sat"});
  CHECK(words_of("don't re-do a_b 3,000 x@y 2*3") == Words{"don't", "re-do", "a_b", "3", "000", "x@y", "2*3"});
  CHECK(words_of("dogs' -dogs 'tis _x") == Words{"dogs'", "dogs", "tis", "x"});
  CHECK(words_of("1 @-@ 2 @,@ = = , -- ' ") == Words{"1", "2"});
  CHECK(words_of("a <unk> b") == Words{"a", "unk", "b"});
  CHECK(words_of("caf\u00e9 \u2013 \u0416\u0435 1\u00d72 a\u2014b \u201cc\u201d") ==
        Words{"caf\u00e9", "\u0416\u0435", "1", "2", "a", "b", "c"});
  CHECK(words_of("").empty());
  CHECK(words_of("a") == Words{"a"});
  CHECK(words_of("\xff"
                 "a\xff") == Words{"a"});
}

TEST_CASE("WordSwap (1): swaps max(1, share of all words), rounded down") {
  // A pair has the number of words and the largest number of swaps. Every second word is a stop word. The last swap may
  // choose no word.
  for (const auto& [words, swaps] : {std::pair{1, 1}, {39, 1}, {79, 1}, {80, 2}, {119, 2}, {120, 3}, {200, 5}}) {
    std::string line;
    for (int i = 0; i < words; ++i) line += i % 2 ? "the " : "word ";
    const int candidates = (words + 1) / 2;
    int fewer = 0, wrong = 0;
    for (std::uint64_t step = 0; step < 400; ++step) {
      const std::string attacked = swapped({}, line, step);
      const int n = count_of(attacked, "AAA");
      fewer += n == swaps - 1;
      wrong += n != swaps && n != swaps - 1;
      wrong += count_of(attacked, "word") != candidates - n || count_of(attacked, "the") != words / 2;
    }
    CHECK(wrong == 0);
    // (2): the last swap chooses no word with probability 1 / (c + 1), where c candidates are left.
    const double p = 1.0 / (candidates - (swaps - 1) + 1);
    CHECK(std::abs(fewer - 400 * p) <= 5 * std::sqrt(400 * p * (1 - p)));
  }
}

TEST_CASE("WordSwap (2): one swap chooses each word or none equally") {
  check_even(results({}, "big cats eat the mice"),
             {"big cats eat the mice", "AAA cats eat the mice", "big AAA eat the mice", "big cats AAA the mice",
              "big cats eat the AAA"});
}

TEST_CASE("WordSwap (2): two swaps choose all pairs equally often") {
  // With three candidates, two swaps have 3 · 3 equally likely outcomes, because the second swap chooses one of the two
  // other words or none. Two outcomes give each pair of words, and one gives each single word.
  const auto count = results({.share = 0.7}, "red green blue");
  std::map<std::string, int> once, twice;
  for (const auto& [text, n] : count) (count_of(text, "AAA") == 1 ? once : twice)[text] = n;
  REQUIRE(once.size() == 3);
  REQUIRE(twice.size() == 3);
  for (const auto& [text, n] : once) CHECK(std::abs(n - kLines / 9.0) < 5 * std::sqrt(kLines * 8 / 81.0));
  for (const auto& [text, n] : twice) CHECK(std::abs(n - 2 * kLines / 9.0) < 5 * std::sqrt(kLines * 14 / 81.0));
}

TEST_CASE("WordSwap: only lower-case stop words stay") {
  CHECK(swapped({.share = 1}, "and the of to, don't") == "and the of to, don't");
  check_even(results({}, "The of the"), {"The of the", "AAA of the"});
}

TEST_CASE("WordSwap: swaps all words if there are too few") {
  for (std::uint64_t step = 0; step < 20; ++step)
    CHECK(swapped({.share = 1}, "cats of the dogs, in Rome", step) == "AAA of the AAA, in AAA");
}

TEST_CASE("WordSwap: separators stay; <unk> is swapped; AAA is not") {
  for (std::uint64_t step = 0; step < 20; ++step) {
    CHECK(swapped({.share = 1}, " = the <unk> @-@ = ", step) == " = the <AAA> @-@ = ");
    CHECK(swapped({}, "AAA of the", step) == "AAA of the");
    CHECK(swapped({.word = "zz"}, "", step).empty());
    CHECK(swapped({}, " , = ", step) == " , = ");
  }
  check_even(results({}, "AAA cats"), {"AAA cats", "AAA AAA"});
  check_even(results({.word = "zz"}, "\u00e9t\u00e9 of"), {"\u00e9t\u00e9 of", "zz of"});
}

TEST_CASE("WordSwap: the position in the random stream determines the line") {
  const std::string line = "one two three four five six seven eight nine ten";
  int same = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    CHECK(swapped({}, line, step) == swapped({}, line, step));
    same += swapped({}, line, step) == WordSwap{}.line(line, {Seed{6}, step});
  }
  CHECK(same < 30);  // 10 are expected
}

TEST_CASE("read_swapped_ids: line n uses step n; new words are unknown") {
  const TextFile file("red green blue\n\nthe red <unk> blue of it\nend");
  const Vocabulary v = read_vocabulary({file.path}, Unit::word);
  const WordSwap swap{.share = 0.5};
  std::vector<TokenId> expected;
  std::uint64_t step = 0;
  for (const char* line : {"red green blue", "", "the red <unk> blue of it", "end"})
    for_each_token(TextFile(swap.line(line, {Seed{9}, step++}) + "\n").path, Unit::word,
                   [&](std::string_view token) { expected.push_back(v.id(token)); });
  CHECK(read_swapped_ids(file.path, v, swap, Seed{9}) == expected);
  CHECK(expected.size() == read_ids(file.path, v).size());
  CHECK(expected != read_ids(file.path, v));
  CHECK(message_of([] { WordSwap{.share = 2}.line("", {}); }) == "WordSwap: share: expected 0 to 1, got 2");
}

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
