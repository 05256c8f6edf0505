#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/row_lanes.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// A version of the innermost loop of a matrix product A B that reads columns of B from memory and not from a panel in
/// the cache. It prefetches the next columns itself. It is used if A has a few rows, or for the first of a few tiles of
/// rows.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Supplies sum_tile, the innermost loop of a product A B, with elements of B from rows of memory: the rows of a matrix
/// that is not packed, or packed panels (groups of Tile::columns columns; see packed_panels). For a few rows of A,
/// packing B first would cost more than it saves.
template <class P>
struct RowsInPlace {
  using T = SumOf<P>;
  static constexpr int words_of_ahead = 1;
  const T* row;
  Index stride;  // distance between rows of B, in elements
  // Number of rows of B that are not read yet. If words are pairs of bfloat16 from two rows, the values of an odd last
  // row are paired with 0.
  Index rows;
  // If not null, the memory to which the panel of columns is copied in packed form while it is read. Other tiles then
  // read the copy.
  T* copy = nullptr;
  // Points to the weights that load() prefetches. If B is not packed, these are the weights that the task reads after
  // the present panel. Their rows are far apart, so hardware prefetchers do not find them. In packed panels, these are
  // the weights at a fixed distance ahead (prefetched_elements).
  const T* next = row;
  Index next_stride = 0;
  Index panel = Tile<P>::columns;  // distance between panels, in elements

  template <int C>
  GATEFOLD_INLINE void load(Index, packet::Of<T>* y) {
    constexpr int values = values_of_word<P>, size = Register<T>::size, line = Prefetch::line / sizeof(T);
    const WordsAcross<P> words{row, values == 2 && rows > 1 ? row + stride : nullptr};
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) y[j] = words.load(j / 2 * panel + j % 2 * size, size).packet();
#pragma GCC unroll 2
    for (int v = 0; v < values; ++v)
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j)
        if (j % 2 * size % line == 0) __builtin_prefetch(next + v * next_stride + j / 2 * panel + j % 2 * size, 0, 3);
    row += values * stride;
    rows -= values;
    next += values * next_stride;
    if (C == 2 && copy) {
      for (int j = 0; j < C; ++j) packet::store(copy + j * size, y[j]);
      copy += Tile<P>::columns;
    }
  }
  GATEFOLD_INLINE void ahead() {}
};

/// Returns how far ahead, in elements, the innermost loop prefetches packed weights if it reads `panels` panels of
/// elements of type W at the same time. Past the end of a panel, this prefetches the panel that follows in memory.
template <class P, class W>
constexpr Index prefetched_elements(Index panels) {
  // Weights stored as bfloat16 are prefetched twice as many cache lines ahead as floats.
  constexpr Index lines = tuning.prefetched_lines * Index(sizeof(SumOf<P>) / sizeof(W)),
                  bytes = Tile<P>::columns * Index(sizeof(W));
  return std::max<Index>(lines * Prefetch::line / (panels * bytes), 1) * Tile<P>::columns;
}

/// Supplies sum_tile, the innermost loop of a product A B, with elements of B from contiguous packed panels whose
/// elements are stored as W: pairs of bfloat16, or Bfloat16 in half the size of floats. See packed_panels.
template <class P, class W>
struct PackedPanels {
  using T = SumOf<P>;
  static constexpr int words_of_ahead = 1;
  const W* words;
  Index panel;  // distance between panels, in elements

  template <int C>
  GATEFOLD_INLINE void load(Index, packet::Of<T>* y) {
    constexpr int size = Register<T>::size, bytes_of_register = size * static_cast<int>(sizeof(W));
    constexpr Index next = prefetched_elements<P, W>(C / 2);
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      const W* const from = words + j / 2 * panel + j % 2 * size;
      if (Index(j % 2) * bytes_of_register % Prefetch::line == 0) __builtin_prefetch(from + next, 0, 3);
      y[j] = RegisterAccess<T>{}.load(from).packet();
    }
    words += Tile<P>::columns;
  }
  GATEFOLD_INLINE void ahead() {}
};

/// Returns a source for sum_from_memory that reads packed panels.
/// @param words   the first panel, stored as W
/// @param panel   distance between panels, in elements
/// @param panels  number of panels that are multiplied at the same time
template <class P, class W>
auto packed_panels(const W* words, Index panel, Index panels) {
  // If words hold one value, a packed panel has the layout of rows of B. RowsInPlace can then read the panel, and
  // sum_tile needs no further instances.
  if constexpr (values_of_word<P> == 1 && std::is_same_v<W, SumOf<P>>) {
    constexpr Index stride = Tile<P>::columns;
    return RowsInPlace<P>{words, stride, 0, nullptr, words + prefetched_elements<P, W>(panels), stride, panel};
  } else {
    return PackedPanels<P, W>{words, panel};
  }
}

/// Returns the number of panels of B that the innermost loop multiplies at the same time by a tile of `rows` rows of A.
/// This is the largest power of two, from 1 to 8, for which the sums do not fill all vector registers; the free ones
/// hold values of B. More panels are faster for two reasons. The loop has more independent sums, so additions do not
/// wait for each other. It also reads longer runs of memory.
template <class P>
constexpr int panels_at_once(Index rows) {
  return static_cast<int>(std::bit_floor(std::clamp(static_cast<unsigned>((Tile<P>::rows - 2) / rows), 1u, 8u)));
}

/// Multiplies `rows` rows of packed A by one panel of B, or by panels_at_once panels if `panels` > 1. Selects the
/// instance of the innermost loop (sum_tile) for this number of rows at run time.
/// @param rows   1 to Tile::rows
/// @param depth  number of words (packed elements) in a row of A
template <class P, class Source>
void sum_from_memory(Index rows, Index panels, Index depth, const SumOf<P>* a, const Source& b, SumOf<P>* sums,
                     Index stride, Index panel, Into into) {
  using Kernel = decltype(&sum_tile<P, 1, 2, Source>);
  static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<std::array<Kernel, 2>, sizeof...(R)>{
        {{&sum_tile<P, R + 1, 2, Source>, &sum_tile<P, R + 1, 2 * panels_at_once<P>(R + 1), Source>}...}};
  }
  (std::make_integer_sequence<int, Tile<P>::rows>{});
  kernels[static_cast<std::size_t>(rows - 1)][panels > 1](depth, a, b, sums, stride, panel, into);
}

/// Returns the function that multiplies by packed weights that are stored as bfloat16 (PackedMatrix::half_tile).
/// Returns null for double and for the matrix unit (AMX), which have no such function.
template <class P>
constexpr HalfTile* half_tile() {
  if constexpr (on_amx<P> || !std::is_same_v<SumOf<P>, float>)
    return nullptr;
  else
    return [](Index rows, Index panels, Index depth, const float* a, const Bfloat16* b, Index panel, float* sums,
              Index stride, Index sums_panel, Into into) {
      sum_from_memory<P>(rows, panels, depth, a, packed_panels<P>(b, panel, panels), sums, stride, sums_panel, into);
    };
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
