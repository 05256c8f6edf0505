#pragma once

#include <type_traits>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// A matrix [depth, columns] of one expert in the order in which the register tile reads it:
///
///     [blocks of Tile::depth values of k][panels of Tile::columns columns][k, column], the last panel filled up with 0
///
/// in its own type or, of floats, rounded to half the size. Null pointers where there is none.
template <class T>
struct PackedMatrix {
  const T* full = nullptr;
  const Bfloat16* half = nullptr;

  explicit operator bool() const { return full || half; }

  static Index padded(Index columns) { return (columns + Tile<T>::columns - 1) / Tile<T>::columns * Tile<T>::columns; }
  static Index size(Index depth, Index columns) { return depth * padded(columns); }
  /// Where the panel of `column` begins in the block of k that holds `length` values from k on.
  static Index at(Index columns, Index k, Index length, Index column) { return k * padded(columns) + column * length; }

  /// The matrix `elements` further on: of another expert.
  PackedMatrix operator+(Index elements) const {
    return {full ? full + elements : nullptr, half ? half + elements : nullptr};
  }
  /// Part t of n of `count` elements, to prefetch.
  Prefetch prefetch(Index element, Index count, Index t, Index n) const {
    return full ? Prefetch::part(full + element, count, t, n) : Prefetch::part(half + element, count, t, n);
  }
  /// The panel at an element. @param buffer  [Tile::depth, Tile::columns] to widen a rounded one into
  const T* panel(Index element, Index length, T* buffer) const {
    if (full) return full + element;
    if constexpr (std::is_same_v<T, float>) widen(half + element, length * Tile<T>::columns, buffer);
    return buffer;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
