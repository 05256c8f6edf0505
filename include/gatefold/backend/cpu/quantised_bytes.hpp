#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/quantised_format.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Quantised weights [E, depth, columns] in an order that does not depend on the processor, as files store them:
///
///     numbers  int8: [E, depth, columns], a signed byte q for each weight
///              int4, mxfp4: [E, ⌈depth / 2⌉, columns], rows 2 i in the lower and 2 i + 1 in the upper half of a byte
///     scales   [E, ⌈depth / 32⌉, columns] bfloat16: s
///
/// int4 stores q in two's complement. mxfp4 stores a bit of sign, two of exponent and one of mantissa.
struct QuantisedBytes {
  Weights form;
  Index experts, depth, columns;

  bool halves() const { return form != Weights::int8; }
  Index number_rows() const { return halves() ? divide_up(depth, Index(2)) : depth; }
  Index scale_rows() const { return QuantisedMatrix::groups(depth); }
  Index numbers() const { return experts * number_rows() * columns; }
  Index scales() const { return experts * scale_rows() * columns; }

  /// Writes the numbers and scales of the matrix w.
  void write(QuantisedMatrix w, std::byte* numbers, Bfloat16* scales) const {
    std::memset(numbers, 0, static_cast<std::size_t>(this->numbers()));
    each_group([&](Index e, Index k, Index j, Index group) {
      std::int8_t q[std::size_t{group_size} * std::size_t{width}];
      Bfloat16 s[std::size_t{width}];
      w.format->unpack((w + group).data, q, s);
      for (Index c = 0; c < std::min(width, columns - j); ++c) {
        scales[(e * scale_rows() + k / group_size) * columns + j + c] = s[c];
        for (Index i = 0; i < std::min(group_size, depth - k); ++i) {
          const auto number = static_cast<unsigned>(q[i * width + c]);
          std::byte& to = numbers[number_at(e, k + i, j + c)];
          to |= static_cast<std::byte>(halves() ? (number & 15) << shift(k + i) : number & 255);
        }
      }
    });
  }
  /// Packs numbers and scales into the memory of a quantised matrix.
  /// @pre wrong_number returns −1
  void read(const std::byte* numbers, const Bfloat16* scales, std::byte* to) const {
    const QuantisedFormat& format = *quantised_format<float>(form);
    each_group([&](Index e, Index k, Index j, Index group) {
      std::int8_t q[std::size_t{group_size} * std::size_t{width}] = {};
      Bfloat16 s[std::size_t{width}] = {};
      for (Index c = 0; c < std::min(width, columns - j); ++c) {
        s[c] = scales[(e * scale_rows() + k / group_size) * columns + j + c];
        for (Index i = 0; i < std::min(group_size, depth - k); ++i) {
          int number = std::to_integer<int>(numbers[number_at(e, k + i, j + c)]);
          if (halves()) number = number >> shift(k + i) & 15;
          if (form == Weights::int4) number -= number & 8 ? 16 : 0;
          q[i * width + c] = static_cast<std::int8_t>(number);
        }
      }
      format.repack(q, s, to + group * format.group_bytes);
    });
  }
  /// Returns the position of a number that the form does not have: −128 in int8. Returns −1 if there is none.
  Index wrong_number(const std::byte* numbers) const {
    if (halves()) return -1;
    const std::byte* const end = numbers + this->numbers();
    const std::byte* const found = std::find(numbers, end, std::byte{0x80});
    return found == end ? -1 : found - numbers;
  }

 private:
  static constexpr Index width = Tile<float>::columns;

  Index number_at(Index e, Index row, Index column) const {
    return (e * number_rows() + (halves() ? row / 2 : row)) * columns + column;
  }
  static int shift(Index row) { return row % 2 ? 4 : 0; }
  /// Calls f(expert, row, column, number of the group) for each group of 32 rows of a panel.
  template <class F>
  void each_group(const F& f) const {
    for (Index e = 0; e < experts; ++e)
      for (Index first = 0; first < depth; first += Tile<float>::depth)
        for (Index j = 0; j < columns; j += width) {
          const Index length = std::min(Tile<float>::depth, depth - first);
          Index group = e * QuantisedMatrix::size(depth, columns) + QuantisedMatrix::at(columns, first, length, j);
          for (Index k = first; k < first + length; k += group_size) f(e, k, j, group++);
        }
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
