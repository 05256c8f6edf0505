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

#include "gatefold/core/types.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/safetensors_header.hpp"

/// Computes the layout of a save: the file and the offset of each tensor. The layout depends only on options, names,
/// types, shapes and metadata, so it is known before any element is read.
namespace gatefold::io {

/// Options of a save.
struct SaveOptions {
  /// The largest number of bytes of tensors in one file. If the tensors have more bytes, they go into several files
  /// with an index, a JSON file that names the file of each tensor. A single tensor that has more bytes gets a separate
  /// file. 0 means one file of any size.
  Index max_file_bytes = 0;

  void validate() const {
    expect(max_file_bytes >= 0, "SaveOptions", "max_file_bytes", "at least 0 (0: one file)", max_file_bytes);
  }
};

namespace safetensors {

/// Lists the files that a save writes, and the file and offset of each tensor.
struct Layout {
  /// The header of one file, and sizes and offsets in this file, in bytes.
  struct File {
    std::string header{};        // size of the JSON text (8 bytes), then the JSON text
    std::uint64_t begin = 0;     // offset of the elements
    std::uint64_t elements = 0;  // bytes of the elements
    std::uint64_t content = 0;   // offset of the content number (see kContent) in the header, or 0 if there is one file
    std::uint64_t size() const { return begin + elements; }
  };
  /// The position of a tensor: the index of its file in `files`, and its offset after the header of this file.
  struct Place {
    std::size_t file = 0;
    std::uint64_t begin = 0;  // offset in bytes from the first element of the file
  };
  Metadata metadata;
  std::vector<Entry> list;
  std::vector<std::size_t> order{};  // order in which tensors are written, as indices into `list`
  std::vector<Place> places{};       // parallel to `list`
  std::vector<File> files{};
  bool in_parts() const { return files.size() > 1; }
};

/// The metadata key under which a save in several files (parts) stores its content number in each part. The content
/// number is a hash of the bytes of all parts (Save::content). The names of the parts also contain it. The number is
/// known only after all parts are written.
inline constexpr std::string_view kContent = "gatefold.content";
inline std::string content_text(std::uint64_t content) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(content));
  return text;
}

/// Returns the layout of a save: the headers of its files, and the file and offset of each tensor.
/// @throws ArgumentError if an option is invalid, or a name or metadata text is not UTF-8
/// @order  tensors with Entry::aligned first, then by decreasing size of an element (I64, F64, F32, F16, BF16, I8, U8),
///         then by name, so each tensor is aligned; a new file begins if the next tensor does not fit into the current
///         file
template <class Json = nlohmann::json>
Layout layout_of(const Metadata& metadata, std::vector<Entry> list, const SaveOptions& options) {
  options.validate();
  Layout layout{metadata, std::move(list)};
  layout.order.resize(layout.list.size());
  for (std::size_t i = 0; i < layout.order.size(); ++i) layout.order[i] = i;
  const auto rank = [&](std::size_t i) {
    const std::string_view order("U8I8BF16F16F32F64I64");
    return layout.list[i].aligned ? order.size() : order.find(layout.list[i].dtype);
  };
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
  expect(layout.files.size() < 100'000, "SaveOptions", "max_file_bytes",
         "a limit that gives fewer than 100000 files, or 0 (one file)", Joined{options.max_file_bytes, " bytes"});
  const std::string whole = header_bytes<Json>(metadata, layout.in_parts() ? std::vector<const Entry*>{} : in_order[0]);
  const auto format = metadata.find("format");  // Hugging Face's transformers requires a known "format"
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

/// Returns the path of the index of a save in several files: the JSON file that names the file of each tensor.
inline std::filesystem::path index_path(std::filesystem::path path) { return path += ".index.json"; }
/// Returns whether a path names an index, the JSON file of a save in several files. Any path that ends with `.json` is
/// taken as an index, because Hugging Face's transformers also uses names such as `model.safetensors.index.fp16.json`.
inline bool is_index(const std::filesystem::path& path) { return path.extension() == ".json"; }

/// Builds the file names of a save in several files (parts). For the path NAME or NAME.safetensors, an example is
/// NAME-CONTENT-00001-of-00003.safetensors. CONTENT is the content number, a hash of the bytes of all parts. Parts with
/// different contents have different names, so the parts of two saves can be in one folder. The index names the valid
/// parts.
class PartNames {
 public:
  explicit PartNames(const std::filesystem::path& path)
      : begin_((path.extension() == ".safetensors" ? path.stem() : path.filename()).string() + '-') {}

  std::string of(std::uint64_t content, std::size_t part, std::size_t parts) const {
    char text[64];
    std::snprintf(text, sizeof text, "-%05zu-of-%05zu.safetensors", part + 1, parts);
    return begin_ + content_text(content) + text;
  }
  /// Returns whether a save in several files (parts) to this path can have a part with this file name, for any content
  /// number (a hash of all parts).
  bool contains(std::string_view name) const {
    return name.starts_with(begin_) && name.size() + 1 == begin_.size() + kPattern.size() && !content_in(name).empty();
  }
  /// Returns the content number (a hash of all parts of a save) in the file name of a part, for any path. Returns an
  /// empty text if the name does not have the form NAME-CONTENT-00001-of-00003.safetensors.
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

/// Returns the JSON text of the index of a save in several files: the file of each tensor, in the format of Hugging
/// Face's transformers, and the metadata of the whole save.
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
