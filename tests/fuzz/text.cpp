// Reads any bytes as a text. Either its characters and lines equal those of the file, or it is refused. The reader
// holds only a block and a line. The word-swap attack keeps the number of words. Also reads the bytes as a list of
// strings; writing and reading the list again gives the same list.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/io/strings.hpp"
#include "gatefold/papers/word_swap.hpp"

using namespace gatefold;

namespace {

/// Returns true if f ends without a FileError. Also requires that f holds at most the given number of bytes.
template <class F>
bool accepted(const F& f, std::size_t bound) {
  bool accepted = false;
  const std::size_t held = fuzz::peak([&] {
    try {
      f();
      accepted = true;
    } catch (const FileError&) {
    }
  });
  FUZZ_REQUIRE(held <= bound);
  return accepted;
}

void check_text(const fuzz::File& file, std::string_view bytes) {
  std::size_t at = 0;
  const auto read = [&] {
    data::TextReader reader(file.path());
    for (data::Character c = reader.next(); !c.bytes.empty(); c = reader.next()) {
      FUZZ_REQUIRE(bytes.substr(at).starts_with(c.bytes));
      at += c.bytes.size();
    }
  };
  const std::size_t piece = data::TextReader::kPiece + (1 << 12);
  const bool is_text = accepted(read, piece);
  FUZZ_REQUIRE(is_text == (at == bytes.size()));
  std::size_t lines = 0;
  const auto read_lines = [&] { data::for_each_line(file.path(), [&](std::string_view) { ++lines; }); };
  FUZZ_REQUIRE(accepted(read_lines, piece + 3 * bytes.size()) == is_text);
  if (!is_text) return;
  const auto ends = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  FUZZ_REQUIRE(lines == ends + (!bytes.empty() && bytes.back() != '\n'));
  std::size_t tokens = 0;
  data::for_each_token(file.path(), data::Unit::word, [&](std::string_view token) { tokens += token == "<eos>"; });
  FUZZ_REQUIRE(tokens >= lines);
}

}  // namespace

int fuzz::text(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::File file(bytes, size);
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  check_text(file, text);
  const std::string attacked = data::WordSwap{.share = 0.5}.line(text, {Seed{1}});
  FUZZ_REQUIRE(data::words_of(attacked).size() == data::words_of(text).size());

  std::vector<std::string> strings;
  // In the input, the string "" takes two bytes; in memory, it is an object of 32 bytes. A growing vector holds three
  // times as many objects.
  if (accepted([&] { strings = io::load_strings(file.path()); }, 64 * size + (1 << 16))) {
    io::save_strings(fuzz::scratch_file(), strings);
    FUZZ_REQUIRE(io::load_strings(fuzz::scratch_file()) == strings);
  }
  return 0;
}
