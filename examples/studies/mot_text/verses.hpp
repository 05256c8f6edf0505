#pragma once

#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <gatefold/core/error.hpp>
#include <gatefold/core/types.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace studies::mot_text {

using gatefold::Index;

/// A verse of the King James Bible.
struct Verse {
  std::string book, place;           // "Ge", "Ge1:1"
  std::vector<std::string> words{};  // in lower case
  double position = 0;               // position in the whole Bible, from 0 to 1
};

/// Returns the words of a text. Words consist of letters, converted to lower case.
inline std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (c == '\'') continue;  // "man's" is one word
    if (std::isalpha(letter)) {
      if (!inside) words.emplace_back();
      words.back() += static_cast<char>(std::tolower(letter));
    }
    inside = std::isalpha(letter);
  }
  return words;
}

/// Parses "1Chr2:3 And …" to book 1Chr, place 1Chr2:3 and the words.
/// @throws gatefold::FileError unless the line begins with such a place
inline Verse parse_verse(const std::string& line) {
  const std::size_t end = line.find(' '), colon = line.find(':');
  std::size_t book = 0;
  while (book < line.size() && (std::isalpha(static_cast<unsigned char>(line[book])) || book == 0)) ++book;
  const bool fits = end != std::string::npos && colon < end && book > 1 && book < colon &&
                    line.find_first_not_of("0123456789", book) == colon && colon + 1 < end &&
                    line.find_first_not_of("0123456789", colon + 1) == end;
  if (!fits)
    throw gatefold::FileError("bible: expected a line such as \"Ge1:1 In the beginning\", got \"" + line + '"');
  return {line.substr(0, book), line.substr(0, end), words_of(std::string_view(line).substr(end))};
}

/// Reads all verses in order from the output of the program `bible`.
/// @throws gatefold::FileError unless the program exists and prints all verses
inline std::vector<Verse> read_verses() {
  // Without -f, `bible` prints whole chapters in a format for reading. Its stderr is dropped, because the error below
  // is clearer.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen("bible -f Ge1:1-Rev22:21 2>/dev/null", "r"), pclose);
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (pipe) {
    const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (got == 0) break;
    text.append(buffer.data(), got);
  }
  std::vector<Verse> verses;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    if (end > begin) verses.push_back(parse_verse(text.substr(begin, end - begin)));
  constexpr std::size_t all = 31102;
  if (verses.empty())
    throw gatefold::FileError("bible: this program printed nothing; is the package bible-kjv installed?");
  if (verses.size() != all)
    throw gatefold::FileError("bible: expected " + std::to_string(all) + " verses, got " +
                              std::to_string(verses.size()));
  for (std::size_t i = 0; i < all; ++i) verses[i].position = static_cast<double>(i) / static_cast<double>(all - 1);
  return verses;
}

/// Returns a hash of a text that is the same on every machine (FNV-1a, mixed).
inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return gatefold::mix64(h);
}

}  // namespace studies::mot_text
