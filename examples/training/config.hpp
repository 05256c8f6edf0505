#pragma once

#include <CLI/App.hpp>
#include <gatefold/core/error.hpp>
#include <gatefold/core/regular_file.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace training {

/// Reads options from a text: a JSON object whose keys are the program's options without `--`. Options on the command
/// line take precedence.
/// @param name  name of the text in error messages
/// @throws FileError if a key is unknown or occurs twice, or if its value is invalid. The message names the key
inline void parse_config(CLI::App& app, const std::string& name, const std::string& text) {
  const auto fail = [&](const std::string& reason) { throw gatefold::FileError(name + ": " + reason); };

  using Json = nlohmann::json;
  std::set<std::string> seen;
  // Without this check, the parser would keep the last value of a repeated key.
  const Json::parser_callback_t once = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key && !seen.insert(parsed.get<std::string>()).second)
      fail(parsed.get<std::string>() + ": given twice");
    return true;
  };
  Json config;
  try {
    config = Json::parse(text, once);
  } catch (const Json::exception& error) {
    fail(error.what());
  }
  if (!config.is_object()) fail("expected an object of JSON, {\"option\": value, …}");
  for (const auto& [key, value] : config.items()) {
    CLI::Option* option = app.get_option_no_throw("--" + key);
    if (option == nullptr || key == "config" || key == "help") fail(key + ": no such option");
    if (!value.is_string() && !value.is_number() && !value.is_boolean())
      fail(key + ": expected a string, a number, true or false, got " + value.type_name());
    if (option->count() > 0) continue;
    try {
      option->add_result(value.is_string() ? value.get<std::string>() : value.dump());
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      fail(error.what());
    }
  }
}
/// Reads options from a file: see parse_config().
inline void read_config(CLI::App& app, const std::string& path) {
  gatefold::RegularFile file(path);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  parse_config(app, path, text);
}

}  // namespace training
