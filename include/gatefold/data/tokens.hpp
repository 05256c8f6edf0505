#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "gatefold/data/text_reader.hpp"

namespace gatefold::data {

/// Selects how a text is divided into tokens: into words (the text between white space, unchanged) or into single
/// characters.
enum class Unit { word, character };

/// The token that marks the end of every line, also of a last line without a line feed.
inline constexpr std::string_view kEndOfLine = "<eos>";

/// Divides a text into tokens and calls f(token) for each. The caller passes the text in pieces, which must not divide
/// a character, and then calls end().
///
/// With Unit::word, a carriage return before a line feed is white space. With Unit::character, it is a character like
/// any other.
/// @cost memory of the longest token
template <class F>
class Tokenizer {
 public:
  Tokenizer(Unit unit, F f) : unit_(unit), f_(f) {}

  void operator()(Character c) {
    const bool ends_line = c.value == '\n';
    open_ = !ends_line;
    if (unit_ == Unit::character && !ends_line) {
      f_(c.bytes);
    } else if (!is_space(c.value)) {
      word_ += c.bytes;
    } else {
      end_word();
      if (ends_line) f_(kEndOfLine);
    }
  }
  void operator()(std::string_view text) {
    while (!text.empty()) {
      const CodePoint point = first_code_point(text);
      // A byte that is not valid UTF-8 counts as a character. In files, TextReader throws FileError instead.
      const std::string_view bytes = text.substr(0, point.length > 0 ? point.length : 1);
      (*this)(Character{point.value, bytes});
      text.remove_prefix(bytes.size());
    }
  }
  void end() {
    end_word();
    if (open_) f_(kEndOfLine);
    open_ = false;
  }

 private:
  void end_word() {
    if (word_.empty()) return;
    f_(std::string_view(word_));
    word_.clear();
  }

  Unit unit_;
  F f_;
  std::string word_{};
  bool open_ = false;  // true if the present line has a character
};

/// Divides a UTF-8 file into tokens and calls f(token) for each.
///
/// @throws FileError if the file cannot be read or is not UTF-8 (TextReader)
template <class F>
void for_each_token(const std::filesystem::path& path, Unit unit, const F& f) {
  TextReader text(path);
  Tokenizer<F> tokens(unit, f);
  for (Character c = text.next(); !c.bytes.empty(); c = text.next()) tokens(c);
  tokens.end();
}

}  // namespace gatefold::data
