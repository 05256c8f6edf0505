#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/io/block_scales.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/opened.hpp"

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
/// A tensor with scales for its blocks (block_scales.hpp) appears as one F32 tensor `NAME` with its values. In the
/// files, FP8 weights are the tensors `NAME` and `NAME_scale_inv`, and MXFP4 weights are `NAME_blocks` and
/// `NAME_scales`.
/// @throws FileError with path and reason: if a file is missing, truncated, too long or not safetensors; if the index
///         is not JSON, names a file outside its folder, or names a tensor that its file lacks; if a tensor has more
///         than 16 dimensions, or scales of a wrong shape or type
/// @cost   the constructor reads only headers, and keeps one open file for each part
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

  /// A tensor with scales as it is in the files: its numbers of eight or four bits, and its scales.
  struct Encoded {
    TensorInfo numbers, scales;
    std::vector<std::byte> bytes, scale_bytes;
  };
  /// Returns a tensor with scales as it is in the files.
  /// @pre has_scales(name)
  Encoded read_encoded(std::string_view name) const {
    const Place& place = at(name);
    const Place& scales = scales_.at(place.scales);
    return {place.stored, scales.info, raw_bytes(place, place.begin, place.end - place.begin),
            raw_bytes(scales, scales.begin, scales.end - scales.begin)};
  }
  /// Returns the name of the tensor whose scales are called `scales`. Returns an empty text if there is none.
  std::string scaled_by(std::string_view scales) const {
    const auto found = scales_.find(scales);
    return found == scales_.end() ? std::string() : found->second.scales;
  }

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
  /// Returns the bytes of a tensor as they are in the file. For a tensor with scales, returns the bytes of its values
  /// as floats.
  std::vector<std::byte> read_bytes(std::string_view name) const {
    const Place& place = at(name);
    if (!place.scales.empty()) return scaled_bytes(place, 0, count(place.info));
    return raw_bytes(place, place.begin, place.end - place.begin);
  }
  /// Returns the bytes of a tensor as they are in the file, in the memory of RegularFile::map: on POSIX systems, pages
  /// of the file instead of a copy. The pointer keeps this memory valid. Two threads must not call this function at the
  /// same time.
  /// @throws FileError if the tensor has scales, because the file does not contain the bytes of its values
  std::shared_ptr<std::byte> map(std::string_view name) const {
    const Place& place = at(name);
    if (!place.scales.empty()) fail(name, "has scales, so it cannot be mapped");
    const std::shared_ptr<std::byte> file = place.file->map();
    return {file, file.get() + place.begin};
  }
  /// One of several interleaved parts of a tensor. The tensor consists of runs of `run` elements. Of every `parts`
  /// consecutive runs, run number `part` belongs to this part.
  struct Part {
    std::uint64_t run, part, parts;
  };
  /// Returns the bytes of `elements` elements of a part of a tensor, beginning with element number `first` of the part.
  /// If the part has fewer elements after `first`, or `elements` is not given, returns all elements up to the end of
  /// the part. The elements of a tensor with scales are its values as floats.
  /// @throws ArgumentError unless part < parts, the number of elements of the tensor is a multiple of run · parts, an
  ///         element has whole bytes, and `first` is at most the number of elements of the part
  std::vector<std::byte> read_part(std::string_view name, const Part& of, std::uint64_t first = 0,
                                   std::uint64_t elements = ~std::uint64_t(0)) const {
    const Place& place = at(name);
    const std::uint64_t all = count(place.info), size = place.end - place.begin;
    if (all == 0) return {};
    const std::uint64_t run = of.run, part = of.part, parts = of.parts;
    const bool whole = part < parts && run > 0 && run <= all / parts && all % (run * parts) == 0 &&
                       (size % all == 0 || !place.scales.empty());  // false for elements of less than a byte
    expect(whole, "TensorFiles.read_part", "run, part, parts",
           Joined{"part < parts, and run * parts to divide ", all, " elements"}, Joined{run, ", ", part, ", ", parts});
    expect(first <= all / parts, "TensorFiles.read_part", "first", Joined{"at most ", all / parts}, first);
    const std::uint64_t end = first + std::min(elements, all / parts - first), turn = parts * run;
    const std::uint64_t element = place.scales.empty() ? size / all : sizeof(float);
    if (parts == 1) return elements_of(place, first, end - first, element);
    const auto stored = [&](std::uint64_t i) { return i / run * turn + part * run + i % run; };
    std::vector<std::byte> bytes;
    bytes.reserve((end - first) * element);
    for (std::uint64_t i = first; i < end;) {
      // Short runs are read together with the elements between them, because one system call per run would take longer
      // than reading these elements. A long run is read in blocks.
      const std::uint64_t turns = kReadAtOnce / (turn * element), in_run = run - i % run;
      const std::uint64_t most = turns == 0 ? std::min(in_run, kReadAtOnce / element) : in_run + (turns - 1) * run;
      const std::uint64_t next = i + std::min(end - i, most), begin = stored(i);
      const std::vector<std::byte> block = elements_of(place, begin, stored(next - 1) + 1 - begin, element);
      while (i < next) {
        const std::uint64_t step = std::min(run - i % run, next - i);
        const auto from = block.begin() + static_cast<std::ptrdiff_t>((stored(i) - begin) * element);
        bytes.insert(bytes.end(), from, from + static_cast<std::ptrdiff_t>(step * element));
        i += step;
      }
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
    // For a tensor with scales, the name of its scales, which are in scales_. For the scales themselves, the name of
    // their tensor. Otherwise empty.
    std::string scales{};
    TensorInfo stored{};  // for a tensor with scales: type and shape of its numbers in the file
  };

  std::vector<std::byte> raw_bytes(const Place& place, std::uint64_t begin, std::uint64_t count) const {
    std::vector<std::byte> bytes(count);
    place.file->read(bytes.data(), bytes.size(), begin);
    return bytes;
  }
  std::vector<std::byte> elements_of(const Place& place, std::uint64_t first, std::uint64_t count,
                                     std::uint64_t element) const {
    if (!place.scales.empty()) return scaled_bytes(place, first, count);
    return raw_bytes(place, place.begin + first * element, count * element);
  }
  /// Returns the values of a tensor with scales as the bytes of floats: `count` floats, beginning with number `first`.
  std::vector<std::byte> scaled_bytes(const Place& place, std::uint64_t first, std::uint64_t count) const {
    if (count == 0) return {};
    const Place& of = scales_.at(place.scales);
    const bool fp8 = of.info.dtype != "U8";
    // Decodes whole rows (MXFP4: whole blocks), because decode_fp8 and decode_mxfp4 accept nothing smaller.
    const std::uint64_t unit = fp8 ? place.info.shape.back() : block_scales::kRow;
    const std::uint64_t begin = first / unit, rows = (first + count + unit - 1) / unit - begin;
    std::vector<float> floats(rows * unit);
    const std::uint64_t bytes_of_row = fp8 ? unit : unit / 2;
    const std::vector<std::byte> stored = raw_bytes(place, place.begin + begin * bytes_of_row, rows * bytes_of_row);
    if (fp8) {
      const std::uint64_t of_matrix = place.info.shape.rbegin()[1], across = of.info.shape.back();
      const std::uint64_t row = block_scales::scale_row(begin, of_matrix),
                          count_of = (block_scales::scale_row(begin + rows - 1, of_matrix) + 1 - row) * across;
      const std::uint64_t element = (of.end - of.begin) / TensorFiles::count(of.info);
      const std::vector<std::byte> bytes = raw_bytes(of, of.begin + row * across * element, count_of * element);
      std::vector<float> scale(count_of);
      safetensors::decode(of.info.dtype, bytes.data(), scale.size(), scale.data());
      block_scales::decode_fp8(stored.data(), scale.data(), begin, rows, of_matrix, unit, floats.data());
    } else {
      const std::vector<std::byte> scale = raw_bytes(of, of.begin + begin, rows);
      block_scales::decode_mxfp4(stored.data(), scale.data(), rows, floats.data());
    }
    std::vector<std::byte> bytes(count * sizeof(float));
    std::memcpy(bytes.data(), floats.data() + (first - begin * unit), bytes.size());
    return bytes;
  }
  /// Replaces each tensor with scales by the F32 tensor of its values, and hides its scales.
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
      place.stored = place.info;
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
      auto of_base = places_.extract(name);
      of_base.mapped().scales = base;
      scales_.insert(std::move(of_base));
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
