// Cuts PTX text into tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gatefold::cuda_emulator {

/// A place in PTX text, with the token that begins there. An identifier takes its dots along (`ld.global.v2.f32`,
/// `%tid.x`, `.reg`); numbers and strings are one token; everything else is one character. Empty at the end.
class Lexer {
 public:
  Lexer(std::string_view text, std::size_t position, std::uint32_t line);

  std::string_view token() const { return token_; }
  std::uint32_t line() const { return line_; }
  std::size_t end() const { return end_; }

  bool is(std::string_view text) const { return token_ == text; }
  bool at_end() const { return token_.empty(); }

  /// @returns the token, and goes on to the next one
  std::string_view take();

  /// Goes on if the token is `text`.
  bool accept(std::string_view text);

  /// @throws Fault unless the token is `text`
  void expect(std::string_view text);

  /// Whether a ':' follows the token, as after a label.
  bool before_colon() const;

  /// From `{` to the token after the `}` that closes it.
  void skip_braces();

  /// Past the next ';'.
  void skip_statement();

  /// `0x1F`, `42`, `0f3F800000`, `0d...`, each with signs before it: its 64 bits.
  std::uint64_t number();
  bool is_number() const;

  [[noreturn]] void fail(std::string_view expected) const;

 private:
  void advance();
  void skip_blank();

  std::string_view text_, token_;
  std::size_t end_;  // of the token
  std::uint32_t line_;
};

}  // namespace gatefold::cuda_emulator
