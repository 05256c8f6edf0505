#include "gatefold/train/config_options.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "support/text_file.hpp"

using namespace gatefold;
using support::refusal;
using Json = nlohmann::json;

TEST_CASE("Options: returns values of each type or the default") {
  const Json json = Json::parse(R"({"i": 3, "x": 0.5, "b": true, "s": "a", "n": null, "l": [1, 2], "t": ["u", "v"],
                                    "o": {"i": 4}})");
  const io::config_json::Options<Json> options("config.json", json);
  CHECK(options.has("i"));
  CHECK_FALSE(options.has("n"));
  CHECK(options.integer("i") == 3);
  CHECK(options.integer("n", 7) == 7);
  CHECK(options.number("x", 2) == 0.5);
  CHECK(options.number("i", 2) == 3);
  CHECK(options.number("none", 2) == 2);
  CHECK(options.flag("b", false));
  CHECK(options.flag("none", true));
  CHECK(options.text("s", "") == "a");
  CHECK(options.text("n", "b") == "b");
  CHECK(options.integers("l") == std::vector<Index>{1, 2});
  CHECK(options.integers("none").empty());
  CHECK(options.layers("l", 3) == std::vector<Index>{1, 2});
  CHECK(options.texts("t") == std::vector<std::string>{"u", "v"});
  CHECK(options.inside("o").integer("i") == 4);
  CHECK(options.inside("none").integer("i") == 3);
}

TEST_CASE("Options: values of other types are errors") {
  const Json json = Json::parse(
      R"({"i": 1.5, "x": "1", "b": 0, "s": 1, "l": [1, "a"], "d": [-2], "n": [1, 3], "t": ["u", 1], "o": 1})");
  const io::config_json::Options<Json> options("config.json", json);
  const std::string at = "config.json: ";
  CHECK(refusal([&] { (void)options.integer("i"); }) == at + "i: expected an integer from 0 to 1000000000, got 1.5");
  CHECK(refusal([&] { (void)options.integer("none"); }) == at + "none: expected an integer, got nothing");
  CHECK(refusal([&] { (void)options.number("x", 0); }) == at + "x: expected a number, got \"1\"");
  CHECK(refusal([&] { (void)options.flag("b", true); }) == at + "b: expected true or false, got 0");
  CHECK(refusal([&] { (void)options.text("s", ""); }) == at + "s: expected a text, got 1");
  CHECK(refusal([&] { (void)options.integers("l"); }) == at + "l: expected an integer from 0 to 1000000000, got \"a\"");
  CHECK(refusal([&] { (void)options.integers("d"); }) == at + "d: expected an integer from 0 to 1000000000, got -2");
  CHECK(refusal([&] { (void)options.layers("n", 3); }) == at + "n: expected an integer from 0 to 2, got 3");
  CHECK(refusal([&] { (void)options.layers("n", 1); }) == at + "n: expected at most 1 layers, got 2");
  CHECK(refusal([&] { (void)options.texts("t"); }) == at + "t: expected a list of texts, got [\"u\",1]");
  CHECK(refusal([&] { (void)options.inside("o"); }) == at + "o: expected an object, got 1");
}
