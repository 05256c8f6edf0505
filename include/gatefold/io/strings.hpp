#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/replacement.hpp"

/// Saves and loads lists of strings, for example the tokens of a vocabulary, as a JSON array with one string in each
/// line.
namespace gatefold::io {

/// Writes a list of strings to a file, as a JSON array.
/// @throws FileError if the file cannot be written (see Replacement); ArgumentError if a string is not UTF-8; an
///         existing file is unchanged then
template <class Json = nlohmann::json>
void save_strings(const std::filesystem::path& path, const std::vector<std::string>& strings) {
  Replacement file(path);
  std::string text = "[";
  for (std::size_t i = 0; i < strings.size(); ++i) {
    try {
      text.append(i > 0 ? ",\n" : "\n").append(Json(strings[i]).dump());
    } catch (const typename Json::type_error&) {
      throw ArgumentError("io::save_strings: strings[" + std::to_string(i) + "]: expected UTF-8");
    }
    if (text.size() < (1u << 16)) continue;
    file.write(text.data(), text.size());
    text.clear();
  }
  text += "\n]\n";
  file.write(text.data(), text.size());
  file.commit();
}

namespace strings {

/// An event handler for the JSON parser that accepts an array of strings and stops at anything else.
template <class Json>
struct Reader {
  std::vector<std::string> strings{};
  bool open = false;
  std::size_t offset = 0;
  std::string reason{};

  bool refuse() {
    reason = "expected an array of strings";
    return false;
  }
  bool string(std::string& value) {
    if (!open) return refuse();
    strings.push_back(std::move(value));
    return true;
  }
  bool start_array(std::size_t) {
    if (open) return refuse();
    return open = true;
  }
  bool end_array() { return true; }
  bool null() { return refuse(); }
  bool boolean(bool) { return refuse(); }
  bool number_integer(typename Json::number_integer_t) { return refuse(); }
  bool number_unsigned(typename Json::number_unsigned_t) { return refuse(); }
  bool number_float(typename Json::number_float_t, const std::string&) { return refuse(); }
  bool binary(typename Json::binary_t&) { return refuse(); }
  bool start_object(std::size_t) { return refuse(); }
  bool end_object() { return refuse(); }
  bool key(std::string&) { return refuse(); }
  bool parse_error(std::size_t at, const std::string&, const typename Json::exception&) {
    offset = at;
    reason = "not JSON";
    return false;
  }
};

}  // namespace strings

/// Reads a list of strings from a file that contains a JSON array.
/// @throws FileError with path and reason unless the file is a JSON array of strings
/// @cost   memory of the size of the file; up to 64 bytes for each string, or 96 while the list grows; and the
///         characters of each string with more than 15 bytes
template <class Json = nlohmann::json>
std::vector<std::string> load_strings(const std::filesystem::path& path) {
  RegularFile file(path);
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  strings::Reader<Json> reader;
  if (!Json::sax_parse(text, &reader)) {
    if (reader.offset > 0) file.fail(reader.offset, reader.reason);
    file.fail(reader.reason);
  }
  return std::move(reader.strings);
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL void save_strings<nlohmann::json>(const std::filesystem::path&, const std::vector<std::string>&);
GATEFOLD_IO_KERNEL std::vector<std::string> load_strings<nlohmann::json>(const std::filesystem::path&);
#endif

}  // namespace gatefold::io
