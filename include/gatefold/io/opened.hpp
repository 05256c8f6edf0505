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

#include "gatefold/core/error.hpp"
#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/layout.hpp"
#include "gatefold/io/safetensors_header.hpp"

/// The files that a path means: one, or the parts of an index.
namespace gatefold::io {

namespace safetensors {

/// A file and what it holds of the path.
struct OpenFile {
  RegularFile file;
  Header header;
  OpenFile(const std::filesystem::path& path, const Known& known);
};
/// All files of a path.
struct Opened {
  std::deque<OpenFile> files{};  // never moved
  Metadata metadata{};           // of the file or of the index
};

inline OpenFile::OpenFile(const std::filesystem::path& path, const Known& known)
    : file(path), header(read_header(file, known)) {}

/// Require of parts that io::save has named that each says the content in its name, or none, as those of earlier
/// versions and of other programs.
/// @throws FileError with the path of a part of another content
inline void expect_one_content(const Opened& opened) {
  const auto said = [](const OpenFile& part) {
    const auto kept = part.header.metadata.find(std::string(kContent));
    return kept == part.header.metadata.end() ? std::string() : kept->second;
  };
  for (const OpenFile& part : opened.files) {
    const std::string name = std::filesystem::path(part.file.path()).filename().string();
    const std::string_view named = PartNames::content_in(name);
    if (!named.empty() && !said(part).empty() && said(part) != named)
      part.file.fail("a part of another set: expected metadata gatefold.content " + std::string(named) +
                     ", as in its name");
  }
}

/// The parts of an index: of each the tensors that the index looks for there, and no other that it may have.
/// @throws FileError with path and reason: what read_header refuses, in any part; an index that is no JSON, names a
///         file that does not lie beside it, or a tensor that its file lacks; a part of another content
template <class Json = nlohmann::json>
Opened open_index(const std::filesystem::path& path, const Known& known) {
  RegularFile file(path);
  if (file.size() > kLongestHeader) file.fail("index: expected at most 100 MB");
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
    // A file that lies beside the index: no path leads out of its folder.
    const std::string beside = part.is_string() ? part.template get<std::string>() : "";
    if (beside.empty() || beside != std::filesystem::path(beside).filename().string())
      fail(name, "expected the name of a file beside it, got " + in_quotes<Json>(part.dump()));
    by_part[beside].push_back(name);
  }
  Opened opened;
  if (const auto kept = index.find("__metadata__"); kept != index.end() && kept->is_object())
    for (const auto& [key, value] : kept->items())
      if (value.is_string()) opened.metadata[key] = value.template get<std::string>();
  for (const auto& of_part : by_part) {
    const std::vector<std::string>& wanted = of_part.second;  // sorted, as the index's names are
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
           "expected in " + part.file.path() + ", which has none");
  }
  expect_one_content(opened);
  return opened;
}

/// The index that a path means: itself, or one that lies beside it and goes before a file of the path. None: empty.
inline std::filesystem::path index_of(const std::filesystem::path& path) {
  if (is_index(path)) return path;
  std::error_code error;
  return std::filesystem::exists(index_path(path), error) ? index_path(path) : std::filesystem::path();
}

/// What a path means.
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

/// Whether there is something to load: a file of the path, or an index of its parts.
inline bool exists(const std::filesystem::path& path) {
  std::error_code error;
  return !safetensors::index_of(path).empty() || std::filesystem::exists(path, error);
}

}  // namespace gatefold::io
