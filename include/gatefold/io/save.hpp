#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gatefold/core/philox.hpp"
#include "gatefold/io/json.hpp"
#include "gatefold/io/opened.hpp"
#include "gatefold/io/output_file.hpp"
#include "gatefold/io/replacement.hpp"

namespace gatefold::io::safetensors {

/// Describes where a process has the elements of a tensor that it saves, and how to copy them to host memory. If the
/// process has only some slices of the tensor (Entry::here), the slices follow each other in memory.
struct Source {
  const void* data;
  Index size;
  std::size_t element;  // bytes per element
  void (*to_host)(void* context, const void* data, Index at, Index count, std::byte* to);
};

void remove_parts(const std::filesystem::path& of, const std::set<std::string>& but);
void commit_whole(Replacement& file, const std::filesystem::path& path);
void expect_no_index(const std::filesystem::path& path);

/// Writes tensors to new files, which at the end replace the files of the previous save. One process writes all
/// elements, or several processes write a share each.
///
///     Save save(path, layout);                     // one process creates the files, in their full size
///     save.write(context, sources);                // each process writes its elements
///     save.commit(save.content());                 // after all have written: the files replace the previous ones
///
/// Until commit, the previous save is complete and unchanged. Each file is replaced in one step. The name and the
/// metadata of a part contain the content number (a hash of all bytes), so parts with a different content are not
/// overwritten. The index is replaced in one step after all parts, and names the valid parts. Afterwards, the parts
/// that the index does not name and a previous single file are removed. Only one program at a time can write to a path.
///
/// @throws ArgumentError if the path ends with `.json`, or if it is a symbolic link and there are several files;
///         FileError with the path that the caller gave and the error message of the system. The previous save is
///         unchanged then
class Save {
 public:
  Save(const std::filesystem::path& path, Layout layout) : path_(path), layout_(std::move(layout)) {
    expect_no_index(path);
    std::error_code unknown;
    expect(!layout_.in_parts() || !std::filesystem::is_symlink(path, unknown), "io::save", "path",
           "the target of the symbolic link, because tensors are written in parts", path.string());
    for (std::size_t f = 0; f < layout_.files.size(); ++f) {
      made_.emplace_back(path_);
      OutputFile& file = files_.emplace_back();
      if (!file.open(made_.back().temporary()) || !file.resize(layout_.files[f].size())) fail("cannot write");
      write_at(f, layout_.files[f].header.data(), layout_.files[f].header.size(), 0);
    }
  }
  /// Joins a save that another process has begun: opens the files that the other process has created.
  /// @param begun  the text that begun() has returned in the other process
  /// @throws ArgumentError if the layout of that process has a different number of files; FileError if this process
  ///         cannot open a file, or a file does not have the size that the layout requires
  Save(const std::filesystem::path& path, Layout layout, const std::string& begun)
      : path_(path), layout_(std::move(layout)) {
    const auto lines = static_cast<std::size_t>(std::count(begun.begin(), begun.end(), kEnd));
    expect(lines == layout_.files.size(), "io::save", "options",
           Joined{lines, " files, as in the process that began the save"}, layout_.files.size());
    std::size_t at = 0;
    for (Layout::File& of : layout_.files) {
      const std::size_t space = begun.find(' ', at), end = begun.find(kEnd, at);
      of.begin = std::stoull(begun.substr(at, space - at));
      OutputFile& file = files_.emplace_back();
      std::uint64_t size = 0;
      const bool opened = file.open(begun.substr(space + 1, end - space - 1));
      if (!opened && errno != ENOENT) fail("cannot open the file that another process has created");
      if (!opened || !file.size(size) || size != of.size())
        throw FileError(path_.string() +
                        ": another process has created a file that this process cannot see: a checkpoint needs a file "
                        "system that all processes share");
      at = end + 1;
    }
  }
  /// Returns a text for the constructor of other processes that join this save: for each file, the offset of its
  /// elements and its path.
  std::string begun() const {
    std::string text;
    for (std::size_t f = 0; f < made_.size(); ++f)
      text += std::to_string(layout_.files[f].begin) + ' ' + std::filesystem::absolute(made_[f].temporary()).string() +
              kEnd;
    return text;
  }

  /// Writes to the files the elements that this process has: whole tensors, or some slices of them. The elements are on
  /// the disk when the function returns.
  /// @param sources  the elements of this process, for each entry of Layout::list in order
  /// @cost   one copy in pieces of 4 MiB
  void write(void* context, const std::vector<Source>& sources) {
    std::vector<std::byte> piece;
    for (const std::size_t i : layout_.order) {
      const Source& source = sources[i];
      const auto step = kPiece / source.element;
      Index from = 0;  // position in the source, in elements
      for (const Slice& slice : layout_.list[i].here) {
        const std::uint64_t begin = layout_.files[layout_.places[i].file].begin + layout_.places[i].begin + slice.begin;
        const std::size_t elements = slice.count / source.element;
        piece.resize(std::max(piece.size(), std::min(step, elements) * source.element));
        for (std::size_t at = 0; at < elements; at += step) {
          const std::size_t count = std::min(step, elements - at);
          source.to_host(context, source.data, from, static_cast<Index>(count), piece.data());
          write_at(layout_.places[i].file, piece.data(), count * source.element, begin + at * source.element);
          from += static_cast<Index>(count);
        }
      }
    }
    for (OutputFile& file : files_)
      if (!file.sync()) fail("cannot write");
  }
  /// Returns the share of this process in the content number: a hash of the bytes that this process has written, and of
  /// their offsets in the files. The content number of the whole save is the sum over all processes. The hash is
  /// computed before the content number is written to the headers; until then, the headers have digits 0 in its place.
  /// The result is 0 if there is only one file.
  std::uint64_t content() const { return content_; }

  /// Replaces the files of the previous save by the new files. The process that created the files calls this function,
  /// after all processes have written.
  /// @param content  the sum of content() over all processes
  void commit(std::uint64_t content) {
    const std::string number = content_text(content);
    if (layout_.in_parts())
      for (std::size_t f = 0; f < files_.size(); ++f)
        if (!files_[f].write(number.data(), number.size(), layout_.files[f].content) || !files_[f].sync())
          fail("cannot write");
    files_.clear();
    if (!layout_.in_parts()) return commit_whole(made_.front(), path_);
    std::vector<std::string> names, added;
    try {
      for (std::size_t f = 0; f < made_.size(); ++f) {
        names.push_back(PartNames(path_).of(content, f, made_.size()));
        std::error_code error;
        if (!std::filesystem::exists(beside(names.back()), error)) added.push_back(names.back());
        made_[f].commit_as(beside(names.back()));
      }
      const std::string text = index_text(layout_, names);
      Replacement replacement(index_path(path_));
      replacement.write(text.data(), text.size());
      replacement.commit();
    } catch (...) {
      std::error_code ignored;
      for (const std::string& name : added) std::filesystem::remove(beside(name), ignored);
      throw;
    }
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
    remove_parts(path_, {names.begin(), names.end()});
  }

  const Layout& layout() const { return layout_; }

 private:
  static constexpr std::size_t kPiece = std::size_t(4) << 20;
  static constexpr char kEnd = '\0';  // terminates each file name in begun()

  [[noreturn]] void fail(const std::string& what, int reason = errno) const {
    throw FileError(path_.string() + ": " + what + ": " + std::generic_category().message(reason));
  }
  std::filesystem::path beside(const std::string& name) const { return path_.parent_path() / name; }

  void write_at(std::size_t file, const void* bytes, std::size_t count, std::uint64_t offset) {
    if (!files_[file].write(bytes, count, offset)) fail("cannot write");
    if (layout_.in_parts()) content_ += content_of(file, bytes, count, offset);
  }
  // Returns a hash of some bytes of a file: the sum, over their 32-bit words, of a hash of the word, its file and its
  // offset. Because the hash is a sum, it does not depend on which process writes which word.
  static std::uint64_t content_of(std::size_t file, const void* bytes, std::size_t count, std::uint64_t offset) {
    std::uint64_t sum = 0, place = (std::uint64_t{file} << 46) + offset / sizeof(std::uint32_t);
    for (std::size_t i = 0; i + sizeof(std::uint32_t) <= count; i += sizeof(std::uint32_t)) {
      std::uint32_t word = 0;
      std::memcpy(&word, static_cast<const std::byte*>(bytes) + i, sizeof word);
      sum += mix64(mix64(place++) ^ word);
    }
    return sum;
  }

  std::filesystem::path path_;
  Layout layout_;
  std::deque<Replacement> made_{};  // the new files; empty if another process created them
  std::deque<OutputFile> files_{};
  std::uint64_t content_ = 0;
};

/// Removes the files that earlier saves in several files (parts) to the path `of` have left, except the files named in
/// `but`.
inline void remove_parts(const std::filesystem::path& of, const std::set<std::string>& but) {
  const PartNames parts(of);
  std::error_code error;
  std::vector<std::filesystem::path> gone;
  const std::filesystem::path folder = of.has_parent_path() ? of.parent_path() : ".";
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (parts.contains(name) && !but.contains(name)) gone.push_back(at->path());
  }
  for (const auto& path : gone) std::filesystem::remove(path, error);
}
/// Replaces the file of a path by a new single file. Then removes the index and the files of an earlier save in several
/// files (parts).
inline void commit_whole(Replacement& file, const std::filesystem::path& path) {
  file.commit();
  // A load prefers an index to the file itself. Therefore an earlier save in several files stays valid until the
  // removal of its index is on the disk.
  const std::filesystem::path index = index_path(path);
  std::error_code error;
  if (std::filesystem::remove(index, error)) file.sync_folder();
  const bool none = error == std::errc::filename_too_long;
  if (error && !none) throw FileError(index.string() + ": cannot remove: " + error.message());
  remove_parts(path, {});
}
/// Checks that a path to which tensors are saved is not the path of an index, the JSON file of a save in several files.
/// @throws ArgumentError if the path ends with `.json`
inline void expect_no_index(const std::filesystem::path& path) {
  expect(!is_index(path), "io::save", "path", "the path of the tensors, not of their index (.json)", path.string());
}

/// Saves tensors of which the caller has all elements: creates new files, writes them, and replaces the files of the
/// previous save by them.
template <class Json = nlohmann::json>
void write_files(const std::filesystem::path& path, const Metadata& metadata, std::vector<Entry> list,
                 const SaveOptions& options, void* context, const std::vector<Source>& sources) {
  Save save(path, layout_of<Json>(metadata, std::move(list), options));
  save.write(context, sources);
  save.commit(save.content());
}

#if defined(GATEFOLD_IO_KERNEL)
GATEFOLD_IO_KERNEL void write_files<nlohmann::json>(const std::filesystem::path&, const Metadata&, std::vector<Entry>,
                                                    const SaveOptions&, void*, const std::vector<Source>&);
#endif

/// A copy of the elements of tensors in host memory. While a background thread writes the copy to a file, training can
/// change the tensors.
class Snapshot {
 public:
  /// Copies the elements of all tensors in `of` to host memory.
  /// @cost   host memory of the size of the elements, which the next call reuses
  void take(void* context, const std::vector<Source>& of) {
    std::size_t size = 0;
    for (const Source& source : of) size += static_cast<std::size_t>(source.size) * source.element;
    bytes_.resize(size);
    sources_.clear();
    std::byte* to = bytes_.data();
    for (const Source& source : of) {
      if (source.size > 0) source.to_host(context, source.data, 0, source.size, to);
      sources_.push_back({to, source.size, source.element, source.element == 4 ? copy<4> : copy<8>});
      to += static_cast<std::size_t>(source.size) * source.element;
    }
  }
  const std::vector<Source>& sources() const { return sources_; }

 private:
  template <std::size_t Element>
  static void copy(void*, const void* from, Index begin, Index count, std::byte* to) {
    std::memcpy(to, static_cast<const std::byte*>(from) + static_cast<std::size_t>(begin) * Element,
                static_cast<std::size_t>(count) * Element);
  }
  std::vector<std::byte> bytes_{};
  std::vector<Source> sources_{};
};

}  // namespace gatefold::io::safetensors
