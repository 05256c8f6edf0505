#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "gatefold/io/json.hpp"
#include "gatefold/io/layout.hpp"

/// Opens the safetensors files of a path: a single file, or the files (parts) that an index lists. An index is a JSON
/// file that names the file of each tensor.
namespace gatefold::io {

namespace safetensors {

/// An open safetensors file and its header. If the file was opened through an index, the header keeps only the tensors
/// that the index assigns to this file.
struct OpenFile {
  RegularFile file;
  Header header;
  OpenFile(const std::filesystem::path& path, const Known& known);
};
/// All open safetensors files of a path.
struct Opened {
  std::deque<OpenFile> files{};  // a deque, because an OpenFile cannot be moved
  Metadata metadata{};           // metadata of the single file, or of the index
};

inline OpenFile::OpenFile(const std::filesystem::path& path, const Known& known)
    : file(path), header(read_header(file, known)) {}

/// Checks for each part (a file that an index lists) that the content number in its metadata equals the content number
/// in its file name. The content number is a hash of all parts of a save. A part without this metadata is accepted,
/// because earlier versions and other programs do not write it. File names without a content number are not checked.
/// @throws FileError with the path of a part that has a different content number
inline void expect_one_content(const Opened& opened) {
  const auto said = [](const OpenFile& part) {
    const auto kept = part.header.metadata.find(std::string(kContent));
    return kept == part.header.metadata.end() ? std::string() : kept->second;
  };
  for (const OpenFile& part : opened.files) {
    const std::string name = std::filesystem::path(part.file.path()).filename().string();
    const std::string_view named = PartNames::content_in(name);
    if (!named.empty() && !said(part).empty() && said(part) != named)
      part.file.fail("a part of another save: expected metadata gatefold.content " + std::string(named) +
                     ", as in the file name");
  }
}

/// Opens the files (parts) that an index lists. In the header of each file, only the tensors that the index assigns to
/// this file are kept.
/// @throws FileError with path and reason: if read_header refuses a part; if the index is not JSON, is larger than 100
///         MB, names a file outside its folder, or names a tensor that its file lacks; if a part belongs to another
///         save (expect_one_content)
template <class Json = nlohmann::json>
Opened open_index(const std::filesystem::path& path, const Known& known) {
  RegularFile file(path);
  if (file.size() > kLongestHeader)
    file.fail("index: expected at most 100000000 bytes, got " + std::to_string(file.size()));
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  const Json index = Json::parse(text, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    file.fail("index: expected JSON with an object \"weight_map\"");
  const auto fail = [&](const std::string& tensor, const std::string& reason) {
    file.fail("tensor " + in_quotes<Json>(tensor) + ": index: " + reason);
  };
  std::map<std::string, std::vector<std::string>> by_part;
  for (const auto& [name, part] : index["weight_map"].items()) {
    // An index may contain only plain file names, so that it cannot refer to files outside its folder.
    const std::string beside = part.is_string() ? part.template get<std::string>() : "";
    if (beside.empty() || beside != std::filesystem::path(beside).filename().string())
      fail(name, "expected the name of a file in the folder of the index, got " + in_quotes<Json>(part.dump()));
    by_part[beside].push_back(name);
  }
  Opened opened;
  if (const auto kept = index.find("__metadata__"); kept != index.end() && kept->is_object())
    for (const auto& [key, value] : kept->items())
      if (value.is_string()) opened.metadata[key] = value.template get<std::string>();
  for (const auto& of_part : by_part) {
    const std::vector<std::string>& wanted = of_part.second;  // sorted, because the JSON object of the index is sorted
    OpenFile& part = opened.files.emplace_back(path.parent_path() / of_part.first, known);
    std::vector<bool> found(wanted.size());
    std::erase_if(part.header.tensors, [&](const Described& t) {
      const auto at = std::lower_bound(wanted.begin(), wanted.end(), part.header.name(t));
      const bool is_wanted = at != wanted.end() && *at == part.header.name(t);
      if (is_wanted) found[static_cast<std::size_t>(at - wanted.begin())] = true;
      return !is_wanted;
    });
    if (const auto lost = std::find(found.begin(), found.end(), false); lost != found.end())
      fail(wanted[static_cast<std::size_t>(lost - found.begin())],
           "expected in " + part.file.path() + ", which does not contain it");
  }
  expect_one_content(opened);
  return opened;
}

/// Returns the path of the index to load for a path: the path itself if it ends with `.json`, otherwise PATH.index.json
/// if that exists, otherwise an empty path. If both PATH and its index exist, the index has priority.
inline std::filesystem::path index_of(const std::filesystem::path& path) {
  if (is_index(path)) return path;
  std::error_code error;
  return std::filesystem::exists(index_path(path), error) ? index_path(path) : std::filesystem::path();
}

/// Opens the safetensors file of a path, or the files that its index lists.
/// @param known  returns whether a tensor with a given name is accepted
inline Opened open(const std::filesystem::path& path, const Known& known) {
  if (const std::filesystem::path index = index_of(path); !index.empty()) return open_index(index, known);
  Opened opened;
  OpenFile& one = opened.files.emplace_back(path, known);
  opened.metadata = std::move(one.header.metadata);
  return opened;
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL Opened open_index<nlohmann::json>(const std::filesystem::path&, const Known&);
#endif

}  // namespace safetensors

/// Returns whether there is something to load at a path: a file with this name, or an index that lists several files.
/// The content is not checked.
inline bool exists(const std::filesystem::path& path) {
  const std::filesystem::path index = safetensors::index_of(path);
  std::error_code error;
  return std::filesystem::exists(index.empty() ? path : index, error);
}

}  // namespace gatefold::io
