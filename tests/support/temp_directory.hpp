#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace gatefold::support {

/// A separate directory for a test. It is removed at the end of the scope.
struct TempDirectory {
  std::filesystem::path path;
  TempDirectory() {
    std::random_device random;
    path = std::filesystem::temp_directory_path() / ("gatefold_test_" + std::to_string(random()));
    std::filesystem::create_directory(path);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() { std::filesystem::remove_all(path); }

  std::filesystem::path file() const { return path / "file"; }
  std::filesystem::path write(std::string_view bytes, std::string_view name = "file") const {
    std::ofstream(path / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path / name;
  }
  std::ptrdiff_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator());
  }
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace gatefold::support
