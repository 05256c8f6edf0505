#include "cuda_emulator/lexer.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string>

#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

/// The characters that form words. It is a table, because every character of a text is looked up.
constexpr auto words = [] {
  std::array<bool, 256> table{};
  constexpr std::string_view all = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$%.";
  for (const char c : all) table[static_cast<unsigned char>(c)] = true;
  return table;
}();

bool is_word(char c) { return words[static_cast<unsigned char>(c)]; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || c == '\0'; }

}  // namespace

Lexer::Lexer(std::string_view text, std::size_t position, std::uint32_t line)
    : text_(text), end_(position), line_(line) {
  advance();
}

void Lexer::skip_blank() {
  while (end_ < text_.size()) {
    const char c = text_[end_];
    if (c == '\n') {
      ++line_;
      ++end_;
    } else if (is_blank(c)) {
      ++end_;
    } else if (c != '/') {
      return;
    } else if (text_.substr(end_, 2) == "//") {
      end_ = std::min(text_.find('\n', end_), text_.size());
    } else if (text_.substr(end_, 2) == "/*") {
      const std::size_t close = std::min(text_.find("*/", end_ + 2), text_.size() - 2) + 2;
      for (; end_ < close; ++end_) line_ += text_[end_] == '\n';
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_blank();
  const std::size_t begin = end_;
  if (begin == text_.size()) {
    token_ = {};
    return;
  }
  if (text_[begin] == '"') {
    end_ = std::min(text_.find('"', begin + 1), text_.size() - 1) + 1;
  } else if (is_word(text_[begin])) {
    while (end_ < text_.size() && (is_word(text_[end_]) || (text_[end_] == ':' && text_.substr(end_, 2) == "::"))) {
      end_ += text_[end_] == ':' ? 2 : 1;
    }
  } else {
    ++end_;
  }
  token_ = text_.substr(begin, end_ - begin);
}

std::string_view Lexer::take() {
  const std::string_view taken = token_;
  advance();
  return taken;
}

bool Lexer::accept(std::string_view text) {
  if (!is(text)) return false;
  advance();
  return true;
}

void Lexer::expect(std::string_view text) {
  if (!accept(text)) fail("'" + std::string(text) + "'");
}

bool Lexer::before_colon() const {
  std::size_t i = end_;
  while (i < text_.size() && (text_[i] == ' ' || text_[i] == '\t')) ++i;
  return i < text_.size() && text_[i] == ':';
}

void Lexer::skip_braces() {
  if (!is("{")) fail("'{'");
  for (int depth = 0; !at_end();) {
    depth += is("{") ? 1 : is("}") ? -1 : 0;
    advance();
    if (depth == 0) return;
  }
  fail("'}'");
}

void Lexer::skip_statement() {
  while (!is(";")) {
    if (at_end()) fail("';'");
    advance();
  }
  advance();
}

bool Lexer::is_number() const { return !token_.empty() && std::isdigit(static_cast<unsigned char>(token_[0])); }

std::uint64_t Lexer::number() {
  if (accept("-")) return -number();
  if (accept("+")) return number();
  if (!is_number()) fail("a number");
  std::string_view digits = token_;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0') {
    const char kind = static_cast<char>(std::tolower(static_cast<unsigned char>(digits[1])));
    if (kind == 'x' || kind == 'f' || kind == 'd') {
      base = 16;
    } else if (kind == 'b') {
      base = 2;
    }
  }
  if (base != 10) digits.remove_prefix(2);
  if (digits.back() == 'U') digits.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || rest != digits.data() + digits.size()) fail("a number");
  advance();
  return value;
}

void Lexer::fail(std::string_view expected) const {
  throw Fault("PTX line " + std::to_string(line_) + ": expected " + std::string(expected) + ", got " +
              (at_end() ? "the end of the text" : "'" + std::string(token_) + "'"));
}

}  // namespace gatefold::cuda_emulator
