#include "gatefold/data/text_reader.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/text_file.hpp"

using namespace gatefold::data;
using gatefold::support::refusal;
using gatefold::support::TextFile;

namespace {

std::string read(const TextFile& file) {
  TextReader reader(file.path);
  std::string text;
  for (Character c = reader.next(); !c.bytes.empty(); c = reader.next()) text += c.bytes;
  CHECK(reader.next().bytes.empty());  // the end stays the end
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
