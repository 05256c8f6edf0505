#pragma once

#include <filesystem>
#include <gatefold/io.hpp>
#include <string>
#include <system_error>

namespace studies {

/// Makes a folder.
/// @throws gatefold::FileError unless the folder exists afterwards
inline void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw gatefold::FileError(folder.string() + ": cannot make this folder: " + error.message());
}

/// Writes a file. If writing fails, an existing file is unchanged.
/// @throws gatefold::FileError if the file cannot be written
inline void write_file(const std::filesystem::path& path, const std::string& text) {
  gatefold::io::Replacement file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace studies
