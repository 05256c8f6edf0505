#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/io/elements.hpp"
#include "gatefold/io/tensor_pieces.hpp"

/// Collects the tensors of a pack into the tensors of another library, for a save.
namespace gatefold::io {

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

}  // namespace gatefold::io
