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

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/io/elements.hpp"
#include "gatefold/io/replacement.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/io/save.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"

/// Loads packs (structs of named tensors) from files of other libraries, and saves them in files for other libraries,
/// with the tensor names of those libraries.
namespace gatefold::io {

/// Maps one tensor of a pack to a tensor in the files of another library.
///
///     {"expert.gate", "model.layers.0.block_sparse_moe.experts.{}.w1.weight", MapEntry::transposed}
///
/// If `theirs` contains `{}`, the file has one tensor for each index of the first extent (the expert), and `{}` is
/// replaced by that index.
///
/// A tensor of the file can have several parts along our last extent (the outputs of a linear map). `parts` is their
/// number, and `ours` is part number `part`. For example, one tensor [E, 2·H, D] of the file has the parts `gate` and
/// `up`:
///
///     {"expert.up", "model.layers.0.mlp.experts.gate_up_proj", MapEntry::transposed, 1, 2}
///
/// If the outputs of the parts alternate (`interleaved`), `ours` has the outputs `part`, `part + parts`, … of `theirs`.
/// For example, gpt-oss has `gate` in the even and `up` in the odd columns of one tensor [E, D, 2·H]:
///
///     {.ours = "expert.up", .theirs = "experts.gate_up_proj", .part = 1, .parts = 2, .interleaved = true}
///
/// Contiguous and interleaved parts have the same shape, and so have a square matrix and its transpose. No check can
/// tell them apart: the entry decides which one is read.
///
/// If `one_expert` is true, `ours` belongs to a single expert, for example a shared one, and `theirs` has no extent for
/// the number of experts. If `theirs` is empty, the tensor of the pack is neither loaded nor saved.
struct MapEntry {
  enum Layout { as_it_is, transposed };  // transposed: last two extents exchanged, as in torch.nn.Linear

  std::string ours, theirs{};
  Layout layout = as_it_is;
  Index part = 0, parts = 1;
  bool one_expert = false;
  // Defines which outputs of the file's tensor `theirs` are the outputs o of gatefold's tensor `ours`. If true, ours[…,
  // o] is theirs[…, o · parts + part]; otherwise theirs[…, part · O + o], with O outputs in each part.
  bool interleaved = false;
};
/// Maps the tensors of a pack to tensors in files of another library, with one entry for each tensor of the pack.
/// published_maps.hpp has the maps of published architectures.
using TensorMap = std::vector<MapEntry>;

namespace tensor_map {

inline constexpr std::size_t kReadAtOnce = std::size_t(1) << 20;  // bytes

/// A tensor in a file of another library, and the elements of a gatefold tensor that are stored in it.
struct Piece {
  std::string name;
  std::vector<std::uint64_t> shape;  // shape in the file
  std::size_t offset, count;         // first element in the gatefold tensor, number of elements
  std::uint64_t rows, columns;       // extents of gatefold's matrices if the file has them transposed; else 0
  std::size_t run, part, parts;  // the file alternates runs of `run` elements of each of `parts` tensors; this is one
};

/// Returns the tensors in the file that store one gatefold tensor: a single one, or one for each expert.
/// @param shape  the shape of the gatefold tensor
/// @throws ArgumentError if the map entry does not fit the shape
inline std::vector<Piece> pieces(const MapEntry& entry, std::vector<std::uint64_t> shape, const char* where) {
  const std::string at = "map: " + entry.ours;
  const std::size_t hole = entry.theirs.find("{}");
  std::uint64_t experts = 1;
  if (hole != std::string::npos || entry.one_expert) {
    experts = shape.front();
    shape.erase(shape.begin());
    expect(!entry.one_expert || experts == 1, where, at, "1 expert, because one_expert is set", experts);
  }
  std::size_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  std::uint64_t rows = 0, columns = 0;
  std::size_t run = shape.empty() ? 1 : shape.back();
  if (entry.layout == MapEntry::transposed) {
    expect(shape.size() >= 2, where, at, "two extents to transpose", safetensors::shape_text(shape));
    rows = shape[shape.size() - 2];
    columns = shape.back();
    run *= rows;
  }
  expect(0 <= entry.part && entry.part < entry.parts, where, at, "0 <= part < parts",
         Joined{"part ", entry.part, " of ", entry.parts});
  const std::size_t part = static_cast<std::size_t>(entry.part), parts = static_cast<std::size_t>(entry.parts);
  expect(parts > 1 || !entry.interleaved, where, at, "at least 2 parts, because interleaved is set", parts);
  if (parts == 1) {
    run = count;
  } else {
    expect(!shape.empty(), where, at, "at least one extent, of which the last is divided into parts",
           safetensors::shape_text(shape));
    shape.back() *= parts;
    if (entry.interleaved) run = rows > 0 ? rows : 1;
  }
  if (entry.layout == MapEntry::transposed) std::swap(shape[shape.size() - 2], shape.back());
  std::vector<Piece> list;
  for (std::uint64_t i = 0; i < experts; ++i) {
    std::string name = entry.theirs;
    if (hole != std::string::npos) name.replace(hole, 2, std::to_string(i));
    list.push_back({std::move(name), shape, i * count, count, rows, columns, run, part, parts});
  }
  return list;
}

/// Calls f(view, pieces) for every tensor of the pack that is stored in the file. `pieces` are the tensors in the file
/// that store it. A tensor with an empty `theirs` in the map is left out. Tensors without elements, for example the
/// bias of a layer without bias, need no map entry.
/// @throws ArgumentError unless the map has each tensor of the pack once, and no others
template <class P, class F>
void visit(const char* where, const TensorMap& map, P& pack, const F& f) {
  std::vector<bool> used(map.size());
  const auto visit_one = [&]<class T, int Rank, class B>(const Name& at, View<T, Rank, B> tensor) {
    const std::string name = at.str();
    const auto found = std::find_if(map.begin(), map.end(), [&](const MapEntry& entry) { return entry.ours == name; });
    expect(found != map.end() || tensor.empty(), where, "map", "an entry for " + name, "none");
    if (found == map.end()) return;
    used[static_cast<std::size_t>(found - map.begin())] = true;
    if (found->theirs.empty()) return;
    std::vector<std::uint64_t> shape(Rank);
    for (int d = 0; d < Rank; ++d) shape[static_cast<std::size_t>(d)] = static_cast<std::uint64_t>(tensor.extent(d));
    f(tensor, pieces(*found, std::move(shape), where));
  };
  for_each_tensor([&](const Name& at, auto& tensor) { visit_one(at, tensor.view()); }, pack);
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end())
    expect(false, where, "map", "tensors of the pack, each at most once",
           map[static_cast<std::size_t>(unused - used.begin())].ours);
}

/// Sets to[j, i] = from[i, j] for each of `count` matrices [rows, columns], which follow each other in memory.
template <class T>
void transpose(const T* from, std::size_t rows, std::size_t columns, std::size_t count, T* to) {
  for (std::size_t first = 0; first < count; first += rows * columns)
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t i = 0; i < rows; ++i) to[first + j * rows + i] = from[first + i * columns + j];
}

/// Checks that the files have all tensors that store the pack, with types that can be read and the right shapes. Reads
/// no elements, and does not access those of the pack.
/// @throws ArgumentError, FileError as load
template <class P>
void expect_stored(const TensorFiles& files, const TensorMap& map, P& pack) {
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

/// Converts elements from a file to elements of gatefold's tensors. It keeps its memory between calls.
template <class T>
class Converted {
 public:
  /// Returns `count` elements of a piece as T, in the order of gatefold's tensor.
  /// @param bytes  the elements in the file's type; whole matrices, if the piece has them transposed
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
/// elements [first, first + count) of each tensor. For tensors of rank 3, these are whole matrices.
/// @cost  host memory of four copies of kReadAtOnce bytes, or of one matrix
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
/// the elements, a part of the pack has been written.
template <class C, class P>
void fill(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack) {
  expect_stored(files, map, pack);
  for_each_block(
      files, map, pack,
      [&]<class T, int Rank, class B>(View<T, Rank, B> to, std::size_t first, std::size_t count, const T* values) {
        B::from_host(ctx, static_cast<Index>(count), values, to.data() + first);
      });
}

}  // namespace tensor_map

/// Calls f(name) with the name of each tensor of the other library in which tensors of the pack are stored.
/// @throws ArgumentError unless the map has each tensor of the pack once, and no others
template <class P, class F>
void for_each_stored(const TensorMap& map, P& pack, const F& f) {
  tensor_map::visit("io::for_each_stored", map, pack, [&](const auto&, const auto& pieces) {
    for (const tensor_map::Piece& piece : pieces) f(piece.name);
  });
}

/// Fills a pack of tensors, which already have their shapes, from files of another library:
///
///     io::load(io::TensorFiles(path), ctx, io::published::mixtral("model.layers.0.block_sparse_moe."), params);
///
/// Numbers of any type are converted to the type of the pack. Leading extents of 1 can be present or absent. Other
/// tensors of the files are ignored. Everything is read and checked before the first tensor is written, so after an
/// exception nothing has changed.
/// @throws ArgumentError unless the map has each tensor of the pack once, and no others; FileError with path, tensor
///         and reason if a tensor is missing, has a different shape, or has a type that cannot be read
/// @cost   host memory of the size of the tensors in the files, and of the largest one as T, while it runs
template <class C, class P, class = std::enable_if_t<!has_dims<P>>>
void load(const TensorFiles& files, C& ctx, const TensorMap& map, P& pack) {
  GATEFOLD_REQUIRE(!std::is_const_v<P>, "gatefold: io::load writes into its pack, so it must not be const");
  tensor_map::visit("io::load", map, pack, [&]<class T, int Rank, class B>(View<T, Rank, B>, const auto&) {
    GATEFOLD_REQUIRE(
        (std::is_same_v<B, typename C::Backend>),
        "gatefold: io needs tensors and a context of the same backend, for example Cpu tensors and a Cpu::Context");
  });
  tensor_map::expect_stored(files, map, pack);
  std::vector<std::vector<std::byte>> bytes;
  tensor_map::visit("io::load", map, pack, [&](const auto&, const auto& pieces) {
    for (const tensor_map::Piece& piece : pieces)
      bytes.push_back(files.read_part(piece.name, {piece.run, piece.part, piece.parts}));
  });
  auto next = bytes.begin();
  tensor_map::visit("io::load", map, pack,
                    [&]<class T, int Rank, class B>(View<T, Rank, B> tensor, const auto& pieces) {
                      tensor_map::Converted<T> converted;
                      for (const tensor_map::Piece& piece : pieces)
                        B::from_host(ctx, static_cast<Index>(piece.count),
                                     converted(piece, files.info(piece.name).dtype, *next++, piece.count),
                                     tensor.data() + piece.offset);
                    });
}

/// Fills a pack from files of another library, like the load that takes TensorFiles, but opens the files of the path
/// only for this call.
template <class C, class P, class = std::enable_if_t<!has_dims<P>>>
void load(const std::filesystem::path& path, C& ctx, const TensorMap& map, P& pack) {
  load(TensorFiles(path), ctx, map, pack);
}

namespace tensor_map {

/// Describes a tensor in a file of another library that is stored in tensors of a pack, and copies its elements.
template <class C>
struct Gathered {
  struct Source {
    Piece piece;
    const void* data;
  };
  std::string name;
  std::vector<std::uint64_t> shape;  // in the file
  std::size_t element;               // bytes of an element in memory
  const char* (*dtype)(Stored);      // the type of its elements in a file
  std::vector<std::byte> (*copy)(C&, const Source&);
  std::vector<Source> sources;  // its parts, in their order

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

/// Returns the tensors of the other library in which tensors of the pack are stored, sorted by name.
/// @throws ArgumentError as save
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

/// Converts the elements of a gathered tensor to a type of a file.
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

}  // namespace tensor_map

/// Writes a pack to a safetensors file with the names, the shapes and, optionally, the element types of another
/// library. `load` with the same map reads this file. An earlier index and parts of the same path are removed.
/// @param stored  the type in which floats and doubles are written; types of 16 bits are rounded to nearest, ties to
///                even
/// @throws ArgumentError as load; for the path of an index (`.json`); if two tensors get the same name, a part lacks
///         the other parts of its tensor, or a text is not UTF-8. FileError as `save` of parts: an existing file is
///         unchanged, and no other file is left
/// @cost   host memory of twice the largest tensor
/// @order  tensors by decreasing size of an element, then by name
template <class C, class P>
void save(const std::filesystem::path& path, C& ctx, const Metadata& metadata, const TensorMap& map, P& pack,
          Stored stored = Stored::as_they_are) {
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
