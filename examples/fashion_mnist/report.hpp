#pragma once

#include <filesystem>
#include <gatefold/io.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace fashion {

/// Write metrics where others can read them: the file appears whole or not at all.
/// @throws gatefold::FileError when it cannot be written
inline void write_report(const std::filesystem::path& path, const nlohmann::ordered_json& metrics) {
  const std::string text = metrics.dump(2) + '\n';
  gatefold::io::Replacement file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace fashion
