#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/io/safetensors_header.hpp"
#include "gatefold/tensor/pack.hpp"

/// Describes in which tensors of another library the tensors of a pack (a struct of named tensors) are stored.
namespace gatefold::io {

/// Maps one tensor of a pack to a tensor in the files of another library.
///
///     {"expert.gate", "model.layers.0.block_sparse_moe.experts.{}.w1.weight", MapEntry::transposed}
///
/// If `theirs` contains `{}`, the file has one tensor for each index of the first extent (the expert), and `{}` is
/// replaced by that index.
///
/// A tensor of the file can have several parts along the last extent of gatefold's tensor (the outputs of a linear
/// map). `parts` is the number of these parts, and `ours` is part number `part`. For example, one tensor [E, 2·H, D] of
/// the file has the parts `gate` and `up`:
///
///     {"expert.up", "model.layers.0.mlp.experts.gate_up_proj", MapEntry::transposed, 1, 2}
///
/// If the outputs of the parts alternate (`interleaved`), `ours` has the outputs `part`, `part + parts`, … of `theirs`.
/// For example, gpt-oss has `gate` in the even and `up` in the odd columns of one tensor [E, D, 2·H]:
///
///     {.ours = "expert.up", .theirs = "experts.gate_up_proj", .part = 1, .parts = 2, .interleaved = true}
///
/// Contiguous and interleaved parts have the same shape, and so have a square matrix and its transpose. Therefore a
/// check of shapes cannot detect a wrong value of `interleaved`, or of `layout` for a square matrix.
///
/// If `one_expert` is true, `ours` belongs to a single expert, for example a shared one, and `theirs` has no extent for
/// the number of experts. If `theirs` is empty, the tensor of the pack is neither loaded nor saved.
struct MapEntry {
  enum Layout { as_it_is, transposed };  // transposed: last two extents exchanged in the file

  std::string ours, theirs{};
  Layout layout = as_it_is;
  Index part = 0, parts = 1;
  bool one_expert = false;
  // Selects the outputs of the file's tensor `theirs` that are the outputs o of gatefold's tensor `ours`. If true,
  // ours[…, o] is theirs[…, o · parts + part]. Otherwise it is theirs[…, part · O + o], with O outputs in each part.
  bool interleaved = false;
};
/// Maps the tensors of a pack to tensors in files of another library, with one entry for each tensor of the pack.
/// published_maps.hpp has the maps of published architectures.
using TensorMap = std::vector<MapEntry>;

namespace tensor_map {

/// A tensor in a file of another library, and the elements of a gatefold tensor that are stored in it.
struct Piece {
  std::string name;
  std::vector<std::uint64_t> shape;  // shape in the file
  std::size_t offset, count;         // first element in the gatefold tensor, number of elements
  std::uint64_t rows, columns;       // extents of gatefold's matrices if the file has them transposed; otherwise 0
  // The tensor of the file has `parts` parts, and this piece is number `part`. In the file, `run` elements of part 0
  // are followed by `run` elements of part 1, and so on. After the last part, part 0 continues.
  std::size_t run, part, parts;
};

/// Returns the tensors in the file that store one gatefold tensor: a single one, or one for each expert.
/// @param shape  the shape of the gatefold tensor
/// @throws ArgumentError if the map entry cannot be applied to the shape, for example if one_expert is set for 2
///         experts
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

/// Calls f(view, pieces) for every tensor of the pack that is stored in the file. `pieces` lists the tensors of the
/// file that store this tensor. A tensor with an empty `theirs` in the map is left out. Tensors without elements, for
/// example the bias of a layer without bias, need no map entry.
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

}  // namespace tensor_map

/// Calls f(name) with the name of each tensor of the other library in which tensors of the pack are stored.
/// @throws ArgumentError unless the map has each tensor of the pack once, and no others
template <class P, class F>
void for_each_stored(const TensorMap& map, P& pack, const F& f) {
  tensor_map::visit("io::for_each_stored", map, pack, [&](const auto&, const auto& pieces) {
    for (const tensor_map::Piece& piece : pieces) f(piece.name);
  });
}

}  // namespace gatefold::io
