#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "support/temp_directory.hpp"

namespace gatefold::support {

/// Returns the folder whose folders have tiny decoders of all architectures, with results of transformers.
inline std::filesystem::path decoder_folders() { return std::filesystem::path(GATEFOLD_TEST_DIR) / "golden/decoders"; }

/// Returns the names of these folders.
inline std::vector<std::string> all_decoders() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(decoder_folders()))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  REQUIRE(names.size() >= 6);
  return names;
}

/// A copy of a folder of a decoder, which a test can damage.
struct CopiedFolder {
  TempDirectory to;
  explicit CopiedFolder(const std::string& name = "mixtral") {
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(decoder_folders() / name / file, to.path / file);
  }
  /// Replaces the only occurrence of a text in a file.
  const CopiedFolder& replace(const char* file, const std::string& text, const std::string& by) const {
    std::string bytes = read_bytes(to.path / file);
    const std::size_t at = bytes.find(text);
    REQUIRE(at != bytes.npos);
    REQUIRE(bytes.find(text, at + 1) == bytes.npos);
    to.write(bytes.replace(at, text.size(), by), file);
    return *this;
  }
  const CopiedFolder& config(const std::string& text, const std::string& by) const {
    return replace("config.json", text, by);
  }
  const CopiedFolder& cut(const char* file, std::uintmax_t bytes) const {
    std::filesystem::resize_file(to.path / file, std::filesystem::file_size(to.path / file) - bytes);
    return *this;
  }
  const CopiedFolder& remove(const char* file) const {
    std::filesystem::remove(to.path / file);
    return *this;
  }
  /// Calls read(path of the folder) and returns the message of the error that it throws, without the path.
  template <class F>
  std::string error_of(const F& read) const {
    try {
      read(to.path);
    } catch (const Error& e) {
      const std::string message = e.what(), path = to.path.string() + "/";
      return message.starts_with(path) ? message.substr(path.size()) : message;
    }
    return "no error";
  }
};

}  // namespace gatefold::support
