#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/safetensors_header.hpp"

/// Which tensors lie in which file, and where: known from names, types, shapes and metadata, before any element is.
namespace gatefold::io {

/// How tensors are written.
struct SaveOptions {
  /// Bytes of tensors in a file: more go into several, beside an index. A tensor that is larger has one of its own. 0:
  /// one file, whatever its size.
  Index max_file_bytes = 0;

  void validate() const {
    expect(max_file_bytes >= 0, "SaveOptions", "max_file_bytes", "at least 0 (0: one file)", max_file_bytes);
  }
};

namespace safetensors {

/// Where elements of tensors go.
struct Layout {
  /// One file: what stands before its elements.
  struct File {
    std::string header{};        // with its length
    std::uint64_t begin = 0;     // of the elements
    std::uint64_t elements = 0;  // their bytes
    std::uint64_t content = 0;   // of a part: where it says of which content it is one
    std::uint64_t size() const { return begin + elements; }
  };
  /// In which file a tensor is, and where.
  struct Place {
    std::size_t file = 0;
    std::uint64_t begin = 0;  // among the elements of the file
  };
  Metadata metadata;
  std::vector<Entry> list;
  std::vector<std::size_t> order{};  // of the list, as elements follow each other
  std::vector<Place> places{};       // by entry
  std::vector<File> files{};
  bool in_parts() const { return files.size() > 1; }
};

/// The metadata of a part: the content in its name, which is known when all are written.
inline constexpr std::string_view kContent = "gatefold.content";
inline std::string content_text(std::uint64_t content) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(content));
  return text;
}

/// @throws ArgumentError on options that do not fit, and on a text that is not UTF-8
/// @order  tensors by falling size of an element (I64, F64, F32), then by name; a file takes what still fits
template <class Json = nlohmann::json>
Layout layout_of(const Metadata& metadata, std::vector<Entry> list, const SaveOptions& options) {
  options.validate();
  Layout layout{metadata, std::move(list)};
  layout.order.resize(layout.list.size());
  for (std::size_t i = 0; i < layout.order.size(); ++i) layout.order[i] = i;
  const auto rank = [&](std::size_t i) { return std::string_view("F32F64I64").find(layout.list[i].dtype); };
  std::sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : layout.list[a].name < layout.list[b].name;
  });

  const auto most = static_cast<std::uint64_t>(options.max_file_bytes);
  std::vector<std::vector<const Entry*>> in_order{{}};
  layout.files.emplace_back();
  layout.places.resize(layout.list.size());
  for (const std::size_t i : layout.order) {
    const Entry& entry = layout.list[i];
    const std::uint64_t used = layout.files.back().elements;
    if (most > 0 && used > 0 && (used > most || entry.bytes > most - used)) {
      layout.files.emplace_back();
      in_order.emplace_back();
    }
    layout.places[i] = {layout.files.size() - 1, layout.files.back().elements};
    layout.files.back().elements += entry.bytes;
    in_order.back().push_back(&entry);
  }
  expect(layout.files.size() < 100'000, "SaveOptions", "max_file_bytes", "as many that fewer than 100000 files do",
         options.max_file_bytes);
  const std::string whole = header_bytes<Json>(metadata, layout.in_parts() ? std::vector<const Entry*>{} : in_order[0]);
  const auto format = metadata.find("format");  // transformers refuse metadata without one that they know
  const Metadata of_part{{"format", format == metadata.end() ? "pt" : format->second},
                         {std::string(kContent), content_text(0)}};
  for (std::size_t f = 0; f < layout.files.size(); ++f) {
    Layout::File& file = layout.files[f];
    file.header = layout.in_parts() ? header_bytes<Json>(of_part, in_order[f]) : whole;
    file.begin = file.header.size();
    if (layout.in_parts()) file.content = file.header.find(content_text(0), file.header.find(kContent));
  }
  return layout;
}

/// The index of the parts of a path.
inline std::filesystem::path index_path(std::filesystem::path path) { return path += ".index.json"; }
/// Whether a path is an index: transformers have `model.safetensors.index.fp16.json` too.
inline bool is_index(const std::filesystem::path& path) { return path.extension() == ".json"; }

/// The names of parts: NAME-CONTENT-00001-of-00003.safetensors of NAME or NAME.safetensors. Those of other contents are
/// others, so that parts of two states lie beside each other until an index says which are meant.
class PartNames {
 public:
  explicit PartNames(const std::filesystem::path& path)
      : begin_((path.extension() == ".safetensors" ? path.stem() : path.filename()).string() + '-') {}

  std::string of(std::uint64_t content, std::size_t part, std::size_t parts) const {
    char text[64];
    std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", part + 1, parts);
    return begin_ + content_text(content) + text;
  }
  /// Whether a name is one of these, of any content.
  bool contains(std::string_view name) const {
    return name.starts_with(begin_) && name.size() + 1 == begin_.size() + kPattern.size() && !content_in(name).empty();
  }
  /// The content in the name of a part of any path; of another name: empty.
  static std::string_view content_in(std::string_view name) {
    if (name.size() < kPattern.size()) return {};
    const std::string_view rest = name.substr(name.size() - kPattern.size());
    for (std::size_t i = 0; i < kPattern.size(); ++i) {
      const bool digit = rest[i] >= '0' && rest[i] <= '9', hex = digit || (rest[i] >= 'a' && rest[i] <= 'f');
      if (!(kPattern[i] == 'h' ? hex : kPattern[i] == 'd' ? digit : rest[i] == kPattern[i])) return {};
    }
    return rest.substr(1, 16);
  }

 private:
  static constexpr std::string_view kPattern = "-hhhhhhhhhhhhhhhh-ddddd-of-ddddd.safetensors";
  std::string begin_;
};

/// The index: which part holds a tensor, as Hugging Face's transformers write it, and the metadata of the whole.
template <class Json = nlohmann::json>
std::string index_text(const Layout& layout, const std::vector<std::string>& names) {
  Json map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < layout.list.size(); ++i) {
    map[layout.list[i].name] = names[layout.places[i].file];
    total += layout.list[i].bytes;
  }
  Json index{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  if (!layout.metadata.empty()) index["__metadata__"] = layout.metadata;
  return index.dump(2) + '\n';
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL Layout layout_of<nlohmann::json>(const Metadata&, std::vector<Entry>, const SaveOptions&);
GATEFOLD_IO_KERNEL std::string index_text<nlohmann::json>(const Layout&, const std::vector<std::string>&);
#endif

}  // namespace safetensors
}  // namespace gatefold::io
