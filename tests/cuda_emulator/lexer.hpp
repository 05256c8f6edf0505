// Cuts PTX text into tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gatefold::cuda_emulator {

/// A place in PTX text, and the token that begins there. Identifiers include their dots (`ld.global.v2.f32`, `%tid.x`,
/// `.reg`). Numbers and strings are one token; all other tokens are one character. At the end, the token is empty.
class Lexer {
 public:
  Lexer(std::string_view text, std::size_t position, std::uint32_t line);

  std::string_view token() const { return token_; }
  std::uint32_t line() const { return line_; }
  std::size_t end() const { return end_; }

  bool is(std::string_view text) const { return token_ == text; }
  bool at_end() const { return token_.empty(); }

  /// @returns the token, and moves to the next one
  std::string_view take();

  /// Moves to the next token if the current token is `text`. @returns true if the current token was `text`
  bool accept(std::string_view text);

  /// Moves to the next token.
  /// @throws Fault unless the current token is `text`
  void expect(std::string_view text);

  /// Returns true if a ':' follows the token, as after a label.
  bool before_colon() const;

  /// Moves from `{` to the token after the `}` that closes it.
  void skip_braces();

  /// Moves past the next ';'.
  void skip_statement();

  /// Returns the 64 bits of the number `0x1F`, `42`, `0f3F800000` or `0d...`, which may have signs before it.
  std::uint64_t number();
  bool is_number() const;

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  void advance();
  void skip_blank();

  std::string_view text_, token_;
  std::size_t end_;  // end of the token
  std::uint32_t line_;
};

}  // namespace gatefold::cuda_emulator
