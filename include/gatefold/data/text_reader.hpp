#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/core/types.hpp"

/// Reads UTF-8 texts, and splits their lines into parts for training, validation and test.
namespace gatefold::data {

/// A Unicode code point and the number of bytes of its UTF-8 encoding. Length 0 means invalid bytes or an empty text.
struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;
};

/// The largest number of bytes in the UTF-8 encoding of a code point.
inline constexpr std::size_t kLongestCodePoint = 4;

constexpr CodePoint first_code_point(std::string_view text);

/// One character of a UTF-8 text: its Unicode code point and its bytes.
struct Character {
  char32_t value = 0;
  std::string_view bytes{};
};

/// Reads a UTF-8 file sequentially, in pieces.
///
/// @throws FileError with path and offset unless it is a regular file and all bytes are valid UTF-8
/// @cost   memory of one piece, for a file of any size
class TextReader {
 public:
  static constexpr std::size_t kPiece = std::size_t(1) << 16;

  explicit TextReader(const std::filesystem::path& path) : file_(path), piece_(kPiece) {}

  /// Returns the next character of the file. At the end of the file, returns a character without bytes. The bytes are
  /// valid until the next call.
  Character next() {
    if (end_ - at_ < kLongestCodePoint) refill();
    if (at_ == end_) return {};
    const CodePoint point = first_code_point({piece_.data() + at_, end_ - at_});
    if (point.length == 0) file_.fail(read_ - (end_ - at_), "not UTF-8");
    const Character character{point.value, {piece_.data() + at_, point.length}};
    at_ += point.length;
    return character;
  }

 private:
  void refill() {
    if (read_ > 0 && end_ < piece_.size()) return;  // the last read reached the end of the file
    std::memmove(piece_.data(), piece_.data() + at_, end_ - at_);
    end_ -= at_;
    at_ = 0;
    const std::size_t got = file_.read_some(piece_.data() + end_, piece_.size() - end_, read_);
    end_ += got;
    read_ += got;
  }

  RegularFile file_;
  std::vector<char> piece_;
  std::size_t at_ = 0, end_ = 0;  // range of unread bytes in piece_
  std::uint64_t read_ = 0;        // bytes read from the file so far
};

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

/// Calls f(line) for every line of a UTF-8 file, without the line feed.
///
/// @throws FileError if the file cannot be read or is not UTF-8 (TextReader)
/// @cost   memory of the longest line
void for_each_line(const std::filesystem::path& path, const auto& f) {
  TextReader text(path);
  std::string line;
  bool open = false;
  for (Character c = text.next(); !c.bytes.empty(); c = text.next()) {
    open = c.value != '\n';
    if (open) {
      line += c.bytes;
      continue;
    }
    f(std::string_view(line));
    line.clear();
  }
  if (open) f(std::string_view(line));
}

enum class Part { train, valid, test };

/// Splits the lines of a text into a training, a validation and a test part.
///
/// The text is cut into `stretches` pieces of consecutive lines, of sizes as equal as possible. Each piece ends with
/// its share of validation lines, followed by its share of test lines. With one piece, the test part is the end of the
/// text. With several pieces, it has passages from everywhere in the text.
/// @param valid, test  shares of the lines, rounded in each piece
/// @throws ArgumentError unless valid and test are at least 0, their sum is less than 1, and stretches >= 1
struct Split {
  double valid = 0.05, test = 0.05;
  Index stretches = 1;

  void validate() const {
    expect(valid >= 0, "Split", "valid", "at least 0", valid);
    expect(test >= 0, "Split", "test", "at least 0", test);
    expect(valid + test < 1, "Split", "valid + test", "less than 1", valid + test);
    expect(stretches >= 1, "Split", "stretches", "at least 1", stretches);
  }

  /// Returns the part (training, validation or test) to which line `line` of a text belongs. The lines are numbered 0 …
  /// lines − 1.
  Part part(Index line, Index lines) const {
    validate();
    expect(0 <= line && line < lines, "Split", "line", Joined{"0 to ", lines - 1}, line);
    // Of n lines in S pieces, piece s has the lines ⌊s n / S⌋ … ⌊(s + 1) n / S⌋ − 1.
    const Index s = (stretches * (line + 1) - 1) / lines, end = (s + 1) * lines / stretches;
    const auto share = [&](double of) {
      return static_cast<Index>(std::llround(of * static_cast<double>(end - s * lines / stretches)));
    };
    const Index to_end = end - line;  // lines from this one to the end of the piece; 1 for its last line
    return to_end <= share(test) ? Part::test : to_end <= share(test) + share(valid) ? Part::valid : Part::train;
  }
};

}  // namespace gatefold::data
