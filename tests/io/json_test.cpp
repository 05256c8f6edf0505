#include "gatefold/io/json.hpp"

#include <doctest/doctest.h>

#include "gatefold/io/safetensors_header.hpp"

TEST_CASE("in_quotes: quotes and escapes a text as JSON") {
  const auto quoted = [](const char* text) { return gatefold::io::safetensors::in_quotes(text); };
  CHECK(quoted("") == "\"\"");
  CHECK(quoted("a \"b\"\n\x01") == "\"a \\\"b\\\"\\n\\u0001\"");
  CHECK(quoted("\xff") == "\"\\ufffd\"");  // not UTF-8: the replacement character
}
