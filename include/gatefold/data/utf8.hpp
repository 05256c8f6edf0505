#pragma once

#include <bit>
#include <cstddef>
#include <string_view>

/// Decodes UTF-8 into Unicode code points.
namespace gatefold::data {

/// A Unicode code point and the number of bytes of its UTF-8 encoding. Length 0 means invalid bytes or an empty text.
struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;
};

/// The largest number of bytes in the UTF-8 encoding of a code point.
inline constexpr std::size_t kLongestCodePoint = 4;

/// Returns the first code point of a UTF-8 text.
///
/// Source: RFC 3629. Only the shortest encoding of a code point is valid. Surrogates and values above U+10FFFF are
/// invalid.
constexpr CodePoint first_code_point(std::string_view text) {
  if (text.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const int ones = std::countl_one(byte(0));
  if (ones == 0) return {byte(0), 1};
  const auto length = static_cast<std::size_t>(ones);
  if (length == 1 || length > kLongestCodePoint || text.size() < length) return {};
  char32_t value = byte(0) & (0x7fu >> ones);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = 0xd800 <= value && value <= 0xdfff;
  if (value < least[length] || surrogate || value > 0x10ffff) return {};
  return {value, length};
}

/// Returns whether a code point has Unicode's property White_Space.
constexpr bool is_space(char32_t c) {
  return (0x09 <= c && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (0x2000 <= c && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace gatefold::data
