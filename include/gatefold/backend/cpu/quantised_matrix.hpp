#pragma once

#include <cstddef>
#include <cstdint>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/backend/weight_rounding.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The number of weights, or of numbers of an item, that share a scale.
inline constexpr Index group_size = WeightRounding::size;

/// One row of the left factor of a product with quantised weights: at most Tile::depth numbers of an item, rounded to
/// 8 bits in groups of 32 (core/weights.hpp, eq. (4)).
struct QuantisedRow {
  static constexpr Index groups = Tile<float>::depth / group_size;

  std::int8_t values[groups * group_size];  // the rounded numbers p; 0 after the last number of the item
  float scale[groups];                      // the scale t of each group
  std::int32_t sum[groups];                 // the sum of the numbers p of each group
};

/// The functions for one form of quantised weights (core/weights.hpp). A matrix has a pointer to them, and products
/// call them through this pointer. Only PackedWeights selects them (quantised_format), so programs that freeze no
/// weights do not compile them.
struct QuantisedFormat {
  Weights form;
  // Size in bytes of a group of 32 rows of one panel of columns: a scale for each column, then the numbers q.
  Index group_bytes;
  /// Rounds one group of weights [32, Tile::columns], eq. (1) to (3), and writes group_bytes bytes.
  void (*encode)(const float* from, std::byte* to);
  /// Writes the values s q of one group [32, Tile::columns].
  void (*decode)(const std::byte* from, float* to);
  /// Rounds columns k to k + depth − 1 of `lines` rows of a matrix, eq. (4), beginning with row number `line`.
  void (*pack_rows)(const Operand<float>& a, Index line, Index lines, Index k, Index depth, QuantisedRow* to);
  /// Multiplies `rows` rows by `panels` panels of weights, of `groups` groups each, eq. (5).
  /// @param sums        [rows, Tile::columns] for each panel, in rows that are `stride` elements apart
  /// @param sums_panel  distance between the sums of two panels, in elements
  void (*multiply)(Index rows, Index groups, Index panels, const QuantisedRow* a, const std::byte* b, float* sums,
                   Index stride, Index sums_panel, Into into);
};

/// The quantised weight matrix [depth, columns] of one expert:
///
///     [blocks of Tile::depth rows][panels of Tile::columns columns][groups of 32 rows]
///
/// The last panel and the last group are padded with zeros.
struct QuantisedMatrix {
  const std::byte* data = nullptr;
  const QuantisedFormat* format = nullptr;

  explicit operator bool() const { return data; }

  static Index groups(Index depth) { return divide_up(depth, group_size); }
  static Index panels(Index columns) { return divide_up(columns, Index(Tile<float>::columns)); }
  /// Returns the number of groups of a matrix [depth, columns]. A group consists of 32 rows of one panel.
  static Index size(Index depth, Index columns) { return groups(depth) * panels(columns); }
  /// Returns the position, counted in groups, of the panel that begins at `column`, in the block of `length` rows that
  /// begins at row k.
  static Index at(Index columns, Index k, Index length, Index column) {
    return groups(k) * panels(columns) + column / Tile<float>::columns * groups(length);
  }
  QuantisedMatrix operator+(Index count) const { return {data ? data + count * format->group_bytes : nullptr, format}; }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
