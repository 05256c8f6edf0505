#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/io/tensor_pieces.hpp"

/// Loads packs (structs of named tensors) from files of other libraries, and saves them in files for other libraries,
/// with the tensor names of those libraries (TensorMap).
namespace gatefold::io {

namespace tensor_map {

template <class C, class P>
void load(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack);

}  // namespace tensor_map

/// Fills a pack of tensors, which already have their shapes, from files of another library:
///
///     io::load(io::TensorFiles(path), ctx, io::published::mixtral("model.layers.0.block_sparse_moe."), params);
///
/// Numbers are converted to the type of the pack if safetensors::reads_as allows it. Leading extents of 1 can be
/// present or absent. Other tensors of the files are ignored. Everything is read and checked before the first tensor
/// is written, so after an exception nothing has changed.
/// @throws ArgumentError unless the map has each tensor of the pack once, and no others; FileError with path, tensor
///         and reason if a tensor is missing, has a different shape, or has a type that cannot be read
/// @cost   while load runs, host memory for the bytes of the tensors in the files. In addition, memory for the largest
///         tensor in the type of the pack, and for a second copy of this tensor if the file has it transposed
template <class C, class P, class = std::enable_if_t<!has_dims<P>>>
void load(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack) {
  tensor_map::load(files, ctx, map, pack);
}

/// Fills a pack from files of another library, like the load that takes TensorFiles, but opens the files of the path
/// only for this call.
template <class C, class P, class = std::enable_if_t<!has_dims<P>>>
void load(const std::filesystem::path& path, C& ctx, const TensorMap& map, P& pack) {
  load(TensorFiles(path), ctx, map, pack);
}

/// Writes a pack to a safetensors file with the names, the shapes and, optionally, the element types of another
/// library. `load` with the same map reads this file. An earlier index and parts of the same path are removed.
/// @param stored  the type in which floats and doubles are written; types of 16 bits are rounded to nearest, ties to
///                even
/// @throws ArgumentError in the same cases as load; for the path of an index (`.json`); if two tensors get the same
///         name, the map lacks a part of a tensor, or a text is not UTF-8. FileError if the file cannot be written: an
///         existing file is then unchanged, and no other file is left
/// @cost   host memory of twice the largest tensor
/// @order  tensors by decreasing size of an element, then by name
template <class C, class P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const TensorMap& map, P& pack,
          Stored stored = Stored::as_they_are);

namespace tensor_map {

/// A tensor for a file of another library, and the tensors of a pack from which its elements are copied (`sources`).
template <class C>
struct Gathered {
  struct Source {
    Piece piece;
    const void* data;
  };
  std::string name;
  std::vector<std::uint64_t> shape;  // shape in the file
  std::size_t element;               // bytes of an element in memory
  const char* (*dtype)(Stored);      // returns the name of the element type in a file
  std::vector<std::byte> (*copy)(C&, const Source&);
  std::vector<Source> sources;  // the parts of the tensor, in the order of the file

  std::size_t size() const { return sources[0].piece.count * sources.size(); }
  /// Returns the elements in the type that they have in memory, in the order of the file.
  /// @cost  host memory of twice the tensor
  std::vector<std::byte> elements(C& ctx) const {
    if (sources.size() == 1) return copy(ctx, sources[0]);
    std::vector<std::byte> all(size() * element);
    const std::size_t run = sources[0].piece.run * element;
    for (std::size_t part = 0; part < sources.size(); ++part) {
      const std::vector<std::byte> bytes = copy(ctx, sources[part]);
      for (std::size_t at = 0, to = part * run; at < bytes.size(); at += run, to += sources.size() * run)
        std::memcpy(all.data() + to, bytes.data() + at, run);
    }
    return all;
  }
};

/// Copies elements of a tensor of type T to host memory, in the order of a file.
template <class C, class T>
std::vector<std::byte> copied(C& ctx, const typename Gathered<C>::Source& source) {
  const Piece& piece = source.piece;
  const auto to_bytes = [&](const std::vector<T>& from) {
    std::vector<std::byte> bytes(piece.count * sizeof(T));
    if (piece.count > 0) std::memcpy(bytes.data(), from.data(), bytes.size());
    return bytes;
  };
  std::vector<T> ours(piece.count);
  C::Backend::to_host(ctx, static_cast<Index>(piece.count), static_cast<const T*>(source.data), ours.data());
  if (piece.rows == 0) return to_bytes(ours);
  std::vector<T> theirs(piece.count);
  transpose(ours.data(), piece.rows, piece.columns, piece.count, theirs.data());
  ours = {};
  return to_bytes(theirs);
}

/// Returns the tensors of the other library that store the tensors of the pack, sorted by name.
/// @throws ArgumentError in the same cases as save
template <class C, class P>
std::vector<Gathered<C>> gather(const TensorMap& map, P& pack) {
  std::vector<Gathered<C>> all;
  visit("io::save", map, pack, [&]<class E, int Rank, class B>(View<E, Rank, B> tensor, const auto& pieces) {
    GATEFOLD_REQUIRE(
        (std::is_same_v<B, typename C::Backend>),
        "gatefold: io needs tensors and a context of the same backend, for example Cpu tensors and a Cpu::Context");
    using T = std::remove_const_t<E>;
    for (const Piece& piece : pieces)
      all.push_back({piece.name,
                     piece.shape,
                     sizeof(T),
                     safetensors::dtype<T>,
                     copied<C, T>,
                     {{piece, tensor.data() + piece.offset}}});
  });
  std::sort(all.begin(), all.end(), [](const Gathered<C>& a, const Gathered<C>& b) {
    return a.name != b.name ? a.name < b.name : a.sources[0].piece.part < b.sources[0].piece.part;
  });
  // Joins the parts of each tensor.
  std::vector<Gathered<C>> joined;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Piece& piece = all[i].sources[0].piece;
    Gathered<C>* const before = !joined.empty() && joined.back().name == all[i].name ? &joined.back() : nullptr;
    const bool last = i + 1 == all.size() || all[i + 1].name != all[i].name;
    const Index of_name = before ? static_cast<Index>(before->sources.size()) : 0;
    expect(all[i].name != "__metadata__", "io::save", "tensor name", "any name except \"__metadata__\"", all[i].name);
    expect(!before || before->sources.back().piece.part != piece.part, "io::save", "tensor names", "distinct names",
           "two of \"" + all[i].name + "\"");
    const bool alike =
        !before || (before->shape == all[i].shape && before->dtype == all[i].dtype &&
                    before->sources[0].piece.parts == piece.parts && before->sources[0].piece.run == piece.run);
    expect(alike && static_cast<Index>(piece.part) == of_name && (!last || piece.part + 1 == piece.parts), "io::save",
           "map", "all parts of \"" + all[i].name + "\", with the same shape and element type",
           Joined{"part ", piece.part, " of ", piece.parts});
    if (before)
      before->sources.push_back(std::move(all[i].sources[0]));
    else
      joined.push_back(std::move(all[i]));
  }
  return joined;
}

/// Converts the elements of a gathered tensor to the element type `dtype` of a file.
template <class C>
std::vector<std::byte> encoded(const Gathered<C>& tensor, std::vector<std::byte> elements, std::string_view dtype) {
  const std::string_view own = tensor.dtype(Stored::as_they_are);
  if (dtype == own) return elements;
  std::vector<std::byte> bytes;
  safetensors::with_element(dtype, [&]<class S>(S) { bytes.resize(tensor.size() * sizeof(S)); });
  safetensors::with_element(own, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
      safetensors::encode(dtype, reinterpret_cast<const T*>(elements.data()), tensor.size(), bytes.data());
  });
  return bytes;
}

inline constexpr std::size_t kReadAtOnce = std::size_t(1) << 20;  // number of bytes

/// Checks that the files have all tensors that store the pack, with types that can be read and the right shapes. Reads
/// no elements of the files, and does not access the elements of the pack.
/// @throws ArgumentError or FileError in the same cases as load
void expect_stored(const TensorFiles& files, const TensorMap& map, auto& pack) {
  visit("io::load", map, pack, [&]<class T, int Rank, class B>(View<T, Rank, B>, const auto& pieces) {
    for (const Piece& piece : pieces) {
      const TensorInfo& info = files.info(piece.name);
      files.expect_reads_as<std::remove_const_t<T>>(info);
      if (!safetensors::same_but_for_leading_ones(info.shape, piece.shape))
        files.fail(piece.name,
                   "expected " + safetensors::shape_text(piece.shape) + ", got " + safetensors::shape_text(info.shape));
    }
  });
}

/// Converts elements from a file to elements of gatefold's tensors. The object keeps its memory between calls.
template <class T>
class Converted {
 public:
  /// Returns `count` elements of a piece as type T, in the order of gatefold's tensor.
  /// @param bytes  the elements in the type of the file. If the piece is transposed in the file, the elements must form
  ///               whole matrices
  const T* operator()(const Piece& piece, std::string_view dtype, const std::vector<std::byte>& bytes,
                      std::size_t count) {
    theirs_.resize(count);
    safetensors::decode(dtype, bytes.data(), count, theirs_.data());
    if (piece.rows == 0) return theirs_.data();
    ours_.resize(count);
    transpose(theirs_.data(), piece.columns, piece.rows, count, ours_.data());
    return ours_.data();
  }

 private:
  std::vector<T> theirs_{}, ours_{};
};

/// Reads all tensors that store the pack, some elements at a time, and calls put(tensor, first, count, values) for
/// elements [first, first + count) of each tensor. For tensors of rank 3, the elements of a call are whole matrices.
/// @cost  host memory of four blocks; a block has kReadAtOnce bytes, or one matrix if that is larger
template <class P, class F>
void for_each_block(const TensorFiles& files, const TensorMap& map, P& pack, const F& put) {
  visit("io::load", map, pack, [&]<class T, int Rank, class B>(View<T, Rank, B> tensor, const auto& pieces) {
    Converted<T> converted;
    for (const Piece& piece : pieces) {
      std::size_t unit = piece.rows * piece.columns;
      if (Rank == 3 && unit == 0) unit = static_cast<std::size_t>(tensor.extent(Rank - 2) * tensor.extent(Rank - 1));
      unit = std::max<std::size_t>(unit, 1);
      const std::size_t at_once = std::max(kReadAtOnce / sizeof(T) / unit, std::size_t(1)) * unit;
      for (std::size_t first = 0; first < piece.count; first += at_once) {
        const std::size_t count = std::min(at_once, piece.count - first);
        const auto bytes = files.read_part(piece.name, {piece.run, piece.part, piece.parts}, first, count);
        put(tensor, piece.offset + first, count, converted(piece, files.info(piece.name).dtype, bytes, count));
      }
    }
  });
}
/// Fills a pack from files, as load does, but needs memory only for some elements at a time. If the system cannot read
/// some elements, a part of the pack may already have been written.
template <class C, class P>
void fill(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack) {
  expect_stored(files, map, pack);
  for_each_block(
      files, map, pack,
      [&]<class T, int Rank, class B>(View<T, Rank, B> to, std::size_t first, std::size_t count, const T* values) {
        B::from_host(ctx, static_cast<Index>(count), values, to.data() + first);
      });
}
template <class C, class P>
void load(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack) {
  GATEFOLD_REQUIRE(!std::is_const_v<P>, "gatefold: io::load writes into its pack, so it must not be const");
  visit("io::load", map, pack, [&]<class T, int Rank, class B>(View<T, Rank, B>, const auto&) {
    GATEFOLD_REQUIRE(
        (std::is_same_v<B, typename C::Backend>),
        "gatefold: io needs tensors and a context of the same backend, for example Cpu tensors and a Cpu::Context");
  });
  expect_stored(files, map, pack);
  std::vector<std::vector<std::byte>> bytes;
  visit("io::load", map, pack, [&](const auto&, const auto& pieces) {
    for (const Piece& piece : pieces)
      bytes.push_back(files.read_part(piece.name, {piece.run, piece.part, piece.parts}));
  });
  auto next = bytes.begin();
  visit("io::load", map, pack, [&]<class T, int Rank, class B>(View<T, Rank, B> tensor, const auto& pieces) {
    Converted<T> converted;
    for (const Piece& piece : pieces)
      B::from_host(ctx, static_cast<Index>(piece.count),
                   converted(piece, files.info(piece.name).dtype, *next++, piece.count), tensor.data() + piece.offset);
  });
}

}  // namespace tensor_map

template <class C, class P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const TensorMap& map, P& pack,
          Stored stored) {
  safetensors::expect_no_index(path);
  std::vector<tensor_map::Gathered<C>> tensors = tensor_map::gather<C>(map, pack);
  const auto element = [&](const tensor_map::Gathered<C>& tensor) {
    std::size_t bytes = 0;
    safetensors::with_element(tensor.dtype(stored), [&]<class S>(S) { bytes = sizeof(S); });
    return bytes;
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const auto& a, const auto& b) { return element(a) > element(b); });
  std::vector<safetensors::Entry> entries;
  std::vector<const safetensors::Entry*> in_order;
  for (const auto& tensor : tensors)
    entries.push_back({tensor.name, tensor.dtype(stored), tensor.shape, tensor.size() * element(tensor)});
  for (const safetensors::Entry& entry : entries) in_order.push_back(&entry);
  const std::string header = safetensors::header_bytes(metadata, in_order);
  Replacement file(path);
  file.write(header.data(), header.size());
  for (const auto& tensor : tensors) {
    const std::vector<std::byte> bytes = tensor_map::encoded(tensor, tensor.elements(ctx), tensor.dtype(stored));
    file.write(bytes.data(), bytes.size());
  }
  safetensors::commit_whole(file, path);
}

}  // namespace gatefold::io
