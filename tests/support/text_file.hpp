#pragma once

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "gatefold/core/error.hpp"

/// Files for the tests of functions that read text.
namespace gatefold::support {

/// A temporary file with some text. It is removed at the end of the scope.
struct TextFile {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("gatefold_text_" + std::to_string(std::random_device{}()));
  explicit TextFile(std::string_view text) { std::ofstream(path, std::ios::binary) << text; }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile() { std::filesystem::remove(path); }
};

/// Returns the message of the FileError that f() throws.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const FileError& error) {
    return error.what();
  }
  return "no FileError";
}

}  // namespace gatefold::support
