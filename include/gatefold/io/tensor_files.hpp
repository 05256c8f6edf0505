#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/regular_file.hpp"
#include "gatefold/io/block_scales.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/opened.hpp"
#include "gatefold/io/safetensors_header.hpp"

namespace gatefold::io {

/// The name, element type and shape of a tensor in a safetensors file.
struct TensorInfo {
  std::string name;
  std::string_view dtype;  // name of the element type: "BF16", "F32", …
  std::vector<std::uint64_t> shape;
};

/// Reads single tensors by name from a safetensors file, or from the files that an index lists
/// (`model.safetensors.index.json`). Elements are converted to a type of your choice.
///
///     io::TensorFiles files("model.safetensors.index.json");
///     for (const auto& [name, dtype, shape] : files.tensors()) …
///     const std::vector<float> norm = files.read<float>("model.norm.weight");
///
/// Source: https://github.com/huggingface/safetensors; the index as Hugging Face's transformers write it: `weight_map`
/// gives for each tensor the name of a file in the same folder. Other tensors of these files are ignored.
///
/// A tensor with scales for its blocks (block_scales.hpp) appears as the F32 tensor that it stands for: FP8 weights
/// `NAME` with `NAME_scale_inv`, and MXFP4 weights `NAME_blocks` with `NAME_scales`, which appear as `NAME`.
/// @throws FileError with path and reason: if read_metadata refuses a part; if the index is not JSON, names a file
///         outside its folder, or names a tensor that its file lacks
/// @cost   reads only headers; keeps one open file for each part
class TensorFiles {
 public:
  explicit TensorFiles(const std::filesystem::path& path)
      : path_(path.string()), opened_(safetensors::open(path, any)) {
    for (safetensors::OpenFile& part : opened_.files)
      for (const safetensors::Described& t : part.header.tensors) add(part, t);
    join_scales();
    for (const auto& [name, place] : places_) tensors_.push_back(place.info);
  }
  TensorFiles(const TensorFiles&) = delete;
  TensorFiles& operator=(const TensorFiles&) = delete;

  const std::string& path() const { return path_; }
  /// Returns name, element type and shape of all tensors, sorted by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return places_.contains(name); }
  /// Returns name, element type and shape of one tensor.
  /// @throws FileError if there is no tensor with this name
  const TensorInfo& info(std::string_view name) const { return at(name).info; }

  /// Returns whether a tensor has scales for its blocks in the files.
  bool has_scales(std::string_view name) const { return !at(name).scales.empty(); }

  /// Returns all elements of a tensor, in row-major order.
  /// @tparam T  float, double or Index
  /// @throws FileError if there is no tensor with this name, if its elements cannot be read as T (for BOOL, use
  ///         read_bytes), or if the file cannot be read
  template <class T>
  std::vector<T> read(std::string_view name) const {
    const Place& place = at(name);
    expect_reads_as<T>(place.info);
    const std::vector<std::byte> bytes = read_bytes(name);
    std::vector<T> elements(count(place.info));
    safetensors::decode(place.info.dtype, bytes.data(), elements.size(), elements.data());
    return elements;
  }
  /// Returns the bytes of a tensor as they are in the file; of a tensor with scales, those of its floats.
  std::vector<std::byte> read_bytes(std::string_view name) const {
    const Place& place = at(name);
    return place.scales.empty() ? raw_bytes(place) : scaled_bytes(place);
  }
  /// Returns the bytes of part number `part` of a tensor whose parts are stored in turns: of every `parts` consecutive
  /// runs of `run` elements, run number `part` belongs to this part.
  /// @throws ArgumentError unless part < parts, and the number of elements is a multiple of run · parts
  std::vector<std::byte> read_part(std::string_view name, std::uint64_t run, std::uint64_t part,
                                   std::uint64_t parts) const {
    const Place& place = at(name);
    const std::uint64_t elements = count(place.info), size = place.end - place.begin;
    if (elements == 0) return {};
    const bool whole = part < parts && run > 0 && run <= elements / parts && elements % (run * parts) == 0 &&
                       (size % elements == 0 || !place.scales.empty());  // excludes elements of less than a byte
    expect(whole, "TensorFiles.read_part", "run, part, parts",
           Joined{"part < parts, and run * parts to divide ", elements, " elements"},
           Joined{run, ", ", part, ", ", parts});
    if (!place.scales.empty()) {
      const std::vector<std::byte> all = scaled_bytes(place);
      std::vector<std::byte> bytes;
      bytes.reserve(all.size() / parts);
      const std::size_t step = run * sizeof(float);
      for (std::size_t from = part * step; from < all.size(); from += parts * step)
        bytes.insert(bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(from),
                     all.begin() + static_cast<std::ptrdiff_t>(from + step));
      return bytes;
    }
    const std::uint64_t step = size / elements * run, all = parts * step;  // bytes of one run, of `parts` runs
    std::vector<std::byte> bytes(size / parts);
    // If runs are short, reads them together with the bytes between them, because one system call per run would take
    // longer than reading these bytes.
    const std::uint64_t at_once = std::max<std::uint64_t>(kReadAtOnce / all, 1);
    std::vector<std::byte> block(step < kReadAtOnce ? all * at_once : 0);
    for (std::uint64_t from = 0, to = 0; to < bytes.size();) {
      if (block.empty()) {
        place.file->read(bytes.data() + to, step, place.begin + from + part * step);
        from += all;
        to += step;
        continue;
      }
      const std::uint64_t count = std::min<std::uint64_t>(block.size(), size - from);
      place.file->read(block.data(), count, place.begin + from);
      for (std::uint64_t run_at = part * step; run_at < count; run_at += all, to += step)
        std::memcpy(bytes.data() + to, block.data() + run_at, static_cast<std::size_t>(step));
      from += count;
    }
    return bytes;
  }

  /// Checks that the elements of a tensor can be converted to T.
  /// @throws FileError if they cannot be converted
  template <class T>
  void expect_reads_as(const TensorInfo& info) const {
    safetensors::dtype<T>();  // compiles only for float, double and Index
    if (!safetensors::reads_as<T>(info.dtype))
      fail(info.name, std::string("dtype: expected ") +
                          (std::is_floating_point_v<T> ? "floating-point numbers of 16 bits or more, or integers"
                                                       : "integers of at most 63 bits") +
                          ", got " + std::string(info.dtype));
  }
  [[noreturn]] void fail(std::string_view tensor, const std::string& reason) const {
    throw FileError(path_ + ": tensor " + safetensors::in_quotes(tensor) + ": " + reason);
  }
  static std::uint64_t count(const TensorInfo& info) {
    std::uint64_t n = 1;
    for (const std::uint64_t extent : info.shape) n *= extent;
    return n;
  }

 private:
  static constexpr std::uint64_t kReadAtOnce = std::uint64_t(1) << 20;  // bytes

  static bool any(const std::string&) { return true; }
  struct Place {
    TensorInfo info;
    RegularFile* file;
    std::uint64_t begin, end;
    std::string scales{};  // the name of its scales in scales_; empty: the tensor has none
  };

  std::vector<std::byte> raw_bytes(const Place& place) const {
    std::vector<std::byte> bytes(place.end - place.begin);
    place.file->read(bytes.data(), bytes.size(), place.begin);
    return bytes;
  }
  /// Returns the bytes of the floats that a tensor with scales stands for.
  std::vector<std::byte> scaled_bytes(const Place& place) const {
    const Place& of = scales_.at(place.scales);
    const std::vector<std::byte> stored = raw_bytes(place), scales = raw_bytes(of);
    std::vector<float> floats(count(place.info));
    if (of.info.dtype == "U8") {
      block_scales::decode_mxfp4(stored.data(), scales.data(), floats.size() / block_scales::kRow, floats.data());
    } else {
      std::vector<float> scale(count(of.info));
      safetensors::decode(of.info.dtype, scales.data(), scale.size(), scale.data());
      const std::uint64_t rows = place.info.shape.rbegin()[1], columns = place.info.shape.back();
      const std::uint64_t matrix = rows * columns;
      block_scales::decode_fp8(stored.data(), scale.data(), matrix == 0 ? 0 : floats.size() / matrix, rows, columns,
                               floats.data());
    }
    std::vector<std::byte> bytes(floats.size() * sizeof(float));
    if (!bytes.empty()) std::memcpy(bytes.data(), floats.data(), bytes.size());
    return bytes;
  }
  /// Replaces each tensor with scales by the F32 tensor that it stands for, and hides its scales.
  void join_scales() {
    constexpr std::string_view of_fp8 = "_scale_inv", of_mxfp4 = "_scales";
    std::vector<std::string> names;
    for (const auto& [name, place] : places_)
      if (name.ends_with(of_fp8) || name.ends_with(of_mxfp4)) names.push_back(name);
    for (const std::string& name : names) {
      const bool fp8 = name.ends_with(of_fp8);
      const std::string base = name.substr(0, name.size() - (fp8 ? of_fp8 : of_mxfp4).size());
      const auto found = places_.find(fp8 ? base : base + "_blocks");
      if (found == places_.end() || found->second.info.dtype != (fp8 ? "F8_E4M3" : "U8")) continue;
      Place place = found->second;
      const Place& scales = places_.find(name)->second;
      std::vector<std::uint64_t>& shape = place.info.shape;
      std::vector<std::uint64_t> expected = shape;
      if (fp8) {
        if (shape.size() < 2) fail(base, "FP8 with scales: expected at least 2 dimensions");
        for (std::size_t d = shape.size() - 2; d < shape.size(); ++d)
          expected[d] = (shape[d] + block_scales::kSquare - 1) / block_scales::kSquare;
      } else {
        if (shape.size() < 2 || shape.back() != block_scales::kRow / 2 || places_.contains(base))
          fail(base + "_blocks", "MXFP4: expected blocks of 16 bytes, got " + safetensors::shape_text(shape));
        expected.pop_back();
        shape.pop_back();
        shape.back() *= block_scales::kRow;
      }
      if (scales.info.shape != expected ||
          !(fp8 ? safetensors::reads_as<float>(scales.info.dtype) : scales.info.dtype == "U8"))
        fail(name, "scales: expected " + safetensors::shape_text(expected) + (fp8 ? "" : " of U8") + ", got " +
                       safetensors::shape_text(scales.info.shape) + " of " + std::string(scales.info.dtype));
      place.info.name = base;
      place.info.dtype = "F32";
      place.scales = name;
      scales_.insert(places_.extract(name));
      places_.erase(found);
      places_.emplace(base, std::move(place));
    }
  }

  const Place& at(std::string_view name) const {
    const auto found = places_.find(name);
    if (found == places_.end()) fail(name, "missing");
    return found->second;
  }
  void add(safetensors::OpenFile& part, const safetensors::Described& t) {
    const std::string name(part.header.name(t));
    if (t.rank > safetensors::Header::kExtents)
      part.file.fail(8, "tensor " + safetensors::in_quotes(name) + ": expected at most " +
                            std::to_string(safetensors::Header::kExtents) + " dimensions, got " +
                            std::to_string(t.rank));
    places_.emplace(name, Place{{name, t.dtype->name, part.header.shape(t)},
                                &part.file,
                                part.header.data_begin + t.begin,
                                part.header.data_begin + t.end});
  }

  std::string path_;
  safetensors::Opened opened_;
  std::map<std::string, Place, std::less<>> places_{}, scales_{};
  std::vector<TensorInfo> tensors_{};
};

}  // namespace gatefold::io
