#include "gatefold/data/tokens.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/text_file.hpp"

using namespace gatefold::data;
using gatefold::support::TextFile;

namespace {

using Tokens = std::vector<std::string>;

/// Reads tokens from a file, and checks that a Tokenizer gives the same tokens if it gets the text in two parts.
Tokens tokens(std::string_view text, Unit unit) {
  Tokens read;
  for_each_token(TextFile(text).path, unit, [&](std::string_view token) { read.emplace_back(token); });
  Tokens pushed;
  Tokenizer tokenizer(unit, [&](std::string_view token) { pushed.emplace_back(token); });
  const std::size_t half = text.find(' ') == std::string_view::npos ? 0 : text.find(' ');
  tokenizer(text.substr(0, half));
  tokenizer(text.substr(half));
  tokenizer.end();
  CHECK(pushed == read);
  return read;
}

}  // namespace

TEST_CASE("for_each_token: words split at white space, <eos> ends lines") {
  CHECK(tokens("The  cat,\tthe CAT.\n\nIt\u00a0is\u3000caf\u00e9 \r\n", Unit::word) ==
        Tokens{"The", "cat,", "the", "CAT.", "<eos>", "<eos>", "It", "is", "caf\u00e9", "<eos>"});
  CHECK(tokens("no end", Unit::word) == Tokens{"no", "end", "<eos>"});
  CHECK(tokens("line\n  ", Unit::word) == Tokens{"line", "<eos>", "<eos>"});
  CHECK(tokens("", Unit::word) == Tokens{});
  CHECK(tokens("\n", Unit::word) == Tokens{"<eos>"});
  CHECK(tokens("a <unk> b", Unit::word) == Tokens{"a", "<unk>", "b", "<eos>"});
}

TEST_CASE("for_each_token: characters are code points, <eos> ends lines") {
  CHECK(tokens("a \u00e9\U0001f600\n\n<", Unit::character) ==
        Tokens{"a", " ", "\u00e9", "\U0001f600", "<eos>", "<eos>", "<", "<eos>"});
  CHECK(tokens("\r\n", Unit::character) == Tokens{"\r", "<eos>"});
  CHECK(tokens("", Unit::character) == Tokens{});
}

TEST_CASE("for_each_token: a word longer than a piece stays whole") {
  const std::string word(3 * TextReader::kPiece + 1, 'w');
  CHECK(tokens(word + " " + word, Unit::word) == Tokens{word, word, "<eos>"});
}
