#include "gatefold/io/strings.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/pass.hpp"
#include "support/text_file.hpp"

using namespace gatefold;
using gatefold::support::message_of;
using gatefold::support::refusal;
using gatefold::support::TextFile;

namespace {

using Strings = std::vector<std::string>;

std::string contents(const TextFile& file) {
  std::ifstream stream(file.path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(stream), {});
}
std::string said(const std::string& text) {
  const TextFile file(text);
  const std::string message = refusal([&] { (void)io::load_strings(file.path); });
  REQUIRE(message.starts_with(file.path.string() + ": "));
  return message.substr(file.path.string().size() + 2);
}

}  // namespace

TEST_CASE("save_strings: load_strings returns the same strings") {
  Strings many;
  for (int i = 0; i < 20'000; ++i) many.push_back("word " + std::to_string(i));
  for (const Strings& strings :
       {Strings{}, Strings{""}, Strings{"a", "\"\\/", "\n\t\r", std::string("\0x", 2), "caf\u00e9 \U0001f600", "<unk>"},
        many}) {
    const TextFile file("before");
    io::save_strings(file.path, strings);
    CHECK(io::load_strings(file.path) == strings);
  }
}

TEST_CASE("save_strings: writes a JSON array, one string per line") {
  const TextFile file("");
  io::save_strings(file.path, {"a", "\u00e9\""});
  CHECK(contents(file) == "[\n\"a\",\n\"\u00e9\\\"\"\n]\n");
  CHECK(io::load_strings(TextFile("  [\"x\" , \"\\u00e9\"]").path) == Strings{"x", "\u00e9"});
}

TEST_CASE("save_strings: invalid UTF-8 throws; the file stays") {
  const TextFile file("before");
  CHECK(message_of([&] {
          io::save_strings(file.path, {"a", "\xff"});
        }) == "io::save_strings: strings[1]: expected UTF-8");
  CHECK(contents(file) == "before");
}

TEST_CASE("load_strings: anything but an array of strings throws") {
  for (const char* text :
       {"\"a\"", "[1]", "[-1]", "[0.5]", "[null]", "[true]", "[[]]", "[\"a\",[\"b\"]]", "{}", "[{}]", "null"})
    CHECK(said(text) == "expected an array of strings");
  for (const auto& [text, offset] :
       {std::pair{"", 1}, {"[", 2}, {"[\"a\"", 5}, {"[\"a\",]", 6}, {"[\"a\"] x", 7}, {"[\"\xff\"]", 3}})
    CHECK(said(text) == "offset " + std::to_string(offset) + ": not JSON");
  CHECK(said(std::string(100'000, '[')) == "expected an array of strings");
  CHECK(refusal([] { (void)io::load_strings("/dev/zero"); }) == "/dev/zero: cannot open: not a regular file");
}
