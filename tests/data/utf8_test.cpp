#include "gatefold/data/utf8.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace gatefold::data;

namespace {

/// Encodes c as section 3 of RFC 3629 says.
std::string spelt(char32_t c) {
  const auto byte = [](char32_t b) { return static_cast<char>(static_cast<unsigned char>(b)); };
  const auto rest = [&](int shift) { return byte(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | (c >> 6)), rest(0)};
  if (c < 0x10000) return {byte(0xe0 | (c >> 12)), rest(6), rest(0)};
  return {byte(0xf0 | (c >> 18)), rest(12), rest(6), rest(0)};
}

}  // namespace

TEST_CASE("first_code_point: decodes every code point; rejects surrogates, truncated bytes") {
  for (char32_t c = 0; c <= 0x10ffff + 0x1000; ++c) {
    const std::string text = spelt(c);
    const bool exists = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    const CodePoint whole = first_code_point(text), more = first_code_point(text + "\x80");
    const bool right = exists ? whole.value == c && whole.length == text.size() && more.length == text.size()
                              : whole.length == 0 && more.length == 0;
    bool cut = true;
    for (std::size_t n = 0; n < text.size(); ++n) cut = cut && first_code_point(text.substr(0, n)).length == 0;
    if (right && cut) continue;
    FAIL_CHECK("code point ", static_cast<unsigned long>(c));
    break;
  }
}

TEST_CASE("first_code_point: rejects continuation, overlong and invalid bytes") {
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf",
        "\xf8\x88\x80\x80\x80", "\xfe", "\xff", "\xc3(", "\xe2\x82(", "\xe2(\xac", "\xf0\x9f(\x80"}) {
    CAPTURE(text);
    CHECK(first_code_point(text).length == 0);
  }
  CHECK(first_code_point("").length == 0);
}

TEST_CASE("is_space: agrees with Unicode") {
  int spaces = 0;
  for (char32_t c = 0; c <= 0x10ffff; ++c) spaces += is_space(c);
  CHECK(spaces == 25);  // PropList.txt: "Total code points: 25"
  for (const char32_t c : {U' ', U'\t', U'\n', U'\r', U'\v', U'\f', U'\u00a0', U'\u2003', U'\u3000', U'\u2028'})
    CHECK(is_space(c));
  for (const char32_t c : {U'a', U'-', U'\0', U'\u200b', U'\ufeff'}) CHECK_FALSE(is_space(c));
}
