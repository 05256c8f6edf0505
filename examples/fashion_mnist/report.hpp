#pragma once

#include <filesystem>
#include <gatefold/io.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace fashion {

/// Writes metrics to a JSON file. If writing fails, an existing file is unchanged.
/// @throws gatefold::FileError if it cannot be written
inline void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& metrics) {
  const std::string text = metrics.dump(2) + '\n';
  gatefold::io::Replacement file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace fashion
