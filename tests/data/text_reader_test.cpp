#include "gatefold/data/text_reader.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/pass.hpp"
#include "support/text_file.hpp"

using namespace gatefold::data;
using gatefold::support::refusal;
using gatefold::support::TextFile;

namespace {

std::string read(const TextFile& file) {
  TextReader reader(file.path);
  std::string text;
  for (Character c = reader.next(); !c.bytes.empty(); c = reader.next()) text += c.bytes;
  CHECK(reader.next().bytes.empty());  // a read after the end returns nothing again
  return text;
}
std::vector<std::string> lines(const TextFile& file) {
  std::vector<std::string> all;
  for_each_line(file.path, [&](std::string_view line) { all.emplace_back(line); });
  return all;
}

}  // namespace

TEST_CASE("TextReader: characters across the end of a piece stay whole") {
  for (const std::size_t before : {TextReader::kPiece - 5, TextReader::kPiece - 4, TextReader::kPiece - 3,
                                   TextReader::kPiece - 2, TextReader::kPiece - 1, TextReader::kPiece, std::size_t(0)})
    for (const char* last : {"", "x", "\u00e9", "\u20ac", "\U0001f600"}) {
      CAPTURE(before);
      CAPTURE(last);
      const std::string text = std::string(before, 'a') + last;
      CHECK(read(TextFile(text)) == text);
      CHECK(read(TextFile(text + "\U0001f600b" + std::string(3 * TextReader::kPiece, '\n') + last)) ==
            text + "\U0001f600b" + std::string(3 * TextReader::kPiece, '\n') + last);
    }
  CHECK(read(TextFile("")).empty());
  TextReader reader(TextFile("\u20ac").path);
  CHECK(reader.next().value == U'\u20ac');
}

TEST_CASE("TextReader: reads lines; the last may lack a newline") {
  using Lines = std::vector<std::string>;
  CHECK(lines(TextFile("")) == Lines{});
  CHECK(lines(TextFile("\n")) == Lines{""});
  CHECK(lines(TextFile("one\n\n two \nthree")) == Lines{"one", "", " two ", "three"});
  CHECK(lines(TextFile("one\n")) == Lines{"one"});
  const std::string length(2 * TextReader::kPiece + 7, 'x');
  CHECK(lines(TextFile(length + "\n" + length)) == Lines{length, length});
}

TEST_CASE("TextReader: invalid UTF-8 throws with its offset") {
  const auto said = [](const std::string& text) {
    const TextFile file(text);
    const std::string message = refusal([&] { (void)read(file); });
    REQUIRE(message.starts_with(file.path.string() + ": "));
    return message.substr(file.path.string().size() + 2);
  };
  CHECK(said("ab\xff") == "offset 2: not UTF-8");
  CHECK(said("\xc3") == "offset 0: not UTF-8");
  CHECK(said(std::string(TextReader::kPiece + 10, 'a') + "\xc0\x80") ==
        "offset " + std::to_string(TextReader::kPiece + 10) + ": not UTF-8");
  CHECK(said(std::string(2 * TextReader::kPiece - 1, 'a') + "\xe2\x82") ==
        "offset " + std::to_string(2 * TextReader::kPiece - 1) + ": not UTF-8");
}

TEST_CASE("TextReader: anything but a regular file throws without waiting") {
  CHECK(refusal([] { TextReader("/dev/zero"); }) == "/dev/zero: cannot open: not a regular file");
  CHECK(refusal([] { TextReader("/"); }) == "/: cannot open: not a regular file");
  CHECK(refusal([] { TextReader("/nowhere/text"); }).starts_with("/nowhere/text: cannot open: "));
}

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

TEST_CASE("first_code_point: decodes code points; rejects surrogates, truncation") {
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

using namespace gatefold;
using gatefold::support::message_of;

namespace {

/// Returns one letter for each line: t for training, v for validation, T for test.
std::string parts(const Split& split, Index lines) {
  std::string all;
  for (Index line = 0; line < lines; ++line) all += "tvT"[static_cast<int>(split.part(line, lines))];
  return all;
}

}  // namespace

TEST_CASE("Split: one stretch is training, then validation, then test") {
  CHECK(parts({.valid = 0.2, .test = 0.3}, 10) == "tttttvvTTT");
  CHECK(parts({.valid = 0, .test = 0}, 3) == "ttt");
  const std::string train(36, 't');
  CHECK(parts({}, 40) == train + "vvTT");
}

TEST_CASE("Split: each of several stretches has all three parts") {
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 3}, 12) == "ttvTttvTttvT");
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 3}, 13) == "ttvTttvTtttvT");
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 1}, 0).empty());
}

TEST_CASE("Split: parts of a stretch are contiguous, with requested sizes") {
  for (const Index lines : {1, 7, 100, 31102})
    for (const Index stretches : {1, 3, 66}) {
      const Split split{.valid = 0.04, .test = 0.06, .stretches = stretches};
      const std::string all = parts(split, lines);
      CAPTURE(lines);
      CAPTURE(stretches);
      Index valid = 0, test = 0, ends = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        valid += all[i] == 'v';
        test += all[i] == 'T';
        const char next = i + 1 < all.size() ? all[i + 1] : 't';
        if (all[i] == 'T' && next != 'T') {
          CHECK(next == 't');
          ++ends;
        }
      }
      CHECK(std::abs(static_cast<double>(valid) - 0.04 * static_cast<double>(lines)) <=
            0.5 * static_cast<double>(stretches));
      CHECK(std::abs(static_cast<double>(test) - 0.06 * static_cast<double>(lines)) <=
            0.5 * static_cast<double>(stretches));
      if (lines == 31102) CHECK(ends == stretches);
    }
}

TEST_CASE("Split: wrong options and lines throw") {
  const auto said = [](const Split& split, Index line = 0) { return message_of([&] { (void)split.part(line, 10); }); };
  CHECK(said({.valid = -0.1}) == "Split: valid: expected at least 0, got -0.1");
  CHECK(said({.test = -0.1}) == "Split: test: expected at least 0, got -0.1");
  CHECK(said({.valid = 0.5, .test = 0.5}) == "Split: valid + test: expected less than 1, got 1");
  CHECK(said({.stretches = 0}) == "Split: stretches: expected at least 1, got 0");
  CHECK(said({}, 10) == "Split: line: expected 0 to 9, got 10");
}
