#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/data/utf8.hpp"

namespace gatefold::data {

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

  /// Returns the next character of the file. At the end of the file, its bytes are empty. The bytes are valid until the
  /// next call.
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

}  // namespace gatefold::data
