#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "gatefold/data/text_reader.hpp"
#include "gatefold/data/utf8.hpp"

namespace gatefold::data {

/// What a text is split into: at white space, letters as they are, or everywhere.
enum class Unit { word, character };

/// The token that ends every line, an unfinished last one too.
inline constexpr std::string_view kEndOfLine = "<eos>";

/// Calls f(token) for the tokens of a text that comes character by character.
///
/// A carriage return before the end of a line is white space to words, and a character like any other.
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
      // What is not UTF-8 goes byte by byte: a file's reader has refused it.
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
  bool open_ = false;  // whether the line has begun
};

/// f(token) for every token of a file.
///
/// @throws FileError as TextReader
template <class F>
void for_each_token(const std::filesystem::path& path, Unit unit, const F& f) {
  TextReader text(path);
  Tokenizer<F> tokens(unit, f);
  for (Character c = text.next(); !c.bytes.empty(); c = text.next()) tokens(c);
  tokens.end();
}

}  // namespace gatefold::data
