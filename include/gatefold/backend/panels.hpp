#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/backend/weight_rounding.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold {

/// The bytes of a packed copy of weights [E, depth, columns] on a CPU, as they are in memory and in mappable files
/// (train/frozen_file.hpp). A panel has `width` columns. `width` is twice the number of floats in a vector register, so
/// the order of the bytes depends on the instruction set:
///
///     [E][blocks of 256 rows][panels][units of the block][bytes of a unit]
///
///     form              rows of a unit   bytes of a unit
///     unchanged         1                [width] float
///     bfloat16          1                [width] bfloat16
///     bfloat16, pairs   2                [width, 2] bfloat16
///     int8              32               [width] bfloat16, [8, width, 4] bytes
///     int4, mxfp4       32               [width] bfloat16, [4, width, 4] bytes
///
/// A unit of a quantised form begins with one scale for each column: s, or s / 2 in mxfp4. Then come the numbers q.
/// Four consecutive rows of a column are next to each other. In int8, a byte is the number q of one weight. In int4 and
/// mxfp4, a byte has two numbers: the number of row r in its lower half, and the number of row r + 16 in its upper
/// half. int4 stores q + 8, and mxfp4 stores the code of q (weight_rounding.hpp).
///
/// The last panel and the last unit are padded with weights of value 0. For processors with a matrix unit (AMX), the
/// pairs of each column are also padded to a multiple of 16.
struct Panels {
  static constexpr Index block = 256;

  Weights form = Weights::unchanged;
  bool pairs = false;
  Index experts = 0, depth = 0, columns = 0;
  Index width = 0;
  Index units = 0;  // the number of units of a column
  const std::byte* data = nullptr;

  explicit operator bool() const { return data; }
  /// Returns whether the bytes of two packed copies of the same weights have the same order.
  bool same_order(const Panels& other) const {
    return form == other.form && pairs == other.pairs && width == other.width && units == other.units;
  }

  Index rows_of_unit() const { return is_quantised(form) ? WeightRounding::size : pairs ? 2 : 1; }
  /// Returns the number of bytes of one column of a unit.
  Index bytes_of_column() const {
    if (is_quantised(form))
      return Index(sizeof(Bfloat16)) + WeightRounding::size / (WeightRounding{form}.halves() ? 2 : 1);
    return form == Weights::unchanged ? Index(sizeof(float)) : rows_of_unit() * Index(sizeof(Bfloat16));
  }
  Index panels() const { return divide_up(columns, width); }
  Index bytes() const { return experts * units * panels() * width * bytes_of_column(); }
  /// Returns the shape of the tensor of these bytes in a mappable file.
  std::vector<std::uint64_t> shape() const {
    std::vector<std::uint64_t> shape;
    for (const Index n : {experts, units * panels(), is_quantised(form) ? width * bytes_of_column() : width})
      shape.push_back(static_cast<std::uint64_t>(n));
    if (pairs) shape.push_back(2);
    return shape;
  }

  /// Writes the numbers and scales of quantised weights in the order of files (quantised_bytes.hpp).
  void to_numbers(std::byte* numbers, Bfloat16* scales) const {
    const QuantisedBytes of{form, experts, depth, columns};
    std::fill_n(numbers, of.numbers(), std::byte{0});
    each_unit([&](Index e, Index k, Index j, Index at) {
      for (Index c = 0; c < std::min(width, columns - j); ++c) {
        scales[of.scale_at(e, k, j + c)] = scaled(value<Bfloat16>(data + at, c), 2);
        for (Index r = 0; r < std::min(rows_of_unit(), depth - k); ++r) {
          const Place place = place_of(r, c);
          const std::byte q = ((data[at + place.byte] ^ zero()) >> place.shift) & mask();
          numbers[of.number_at(e, k + r, j + c)] |= q << of.shift(k + r);
        }
      }
    });
  }
  /// Packs numbers and scales in the order of files. The inverse of to_numbers.
  /// @param to  [bytes()] out
  void from_numbers(const std::byte* numbers, const Bfloat16* scales, std::byte* to) const {
    const QuantisedBytes of{form, experts, depth, columns};
    const Index all_scales = width * static_cast<Index>(sizeof(Bfloat16)), unit = width * bytes_of_column();
    each_unit([&](Index e, Index k, Index j, Index at) {
      std::fill_n(std::fill_n(to + at, all_scales, std::byte{0}), unit - all_scales, zero());
      for (Index c = 0; c < std::min(width, columns - j); ++c) {
        const Bfloat16 scale = scaled(scales[of.scale_at(e, k, j + c)], 0.5F);
        std::memcpy(to + at + c * Index(sizeof(scale)), &scale, sizeof(scale));
        for (Index r = 0; r < std::min(rows_of_unit(), depth - k); ++r) {
          const Place place = place_of(r, c);
          const std::byte q = (numbers[of.number_at(e, k + r, j + c)] >> of.shift(k + r)) & mask();
          to[at + place.byte] ^= q << place.shift;
        }
      }
    });
  }
  /// Writes weights that are not quantised as floats.
  /// @param transposed  false: writes [E, depth, columns]; true: writes [columns, depth], and E must be 1
  void to_floats(float* to, bool transposed) const {
    each_unit([&](Index e, Index k, Index j, Index at) {
      for (Index c = 0; c < std::min(width, columns - j); ++c)
        for (Index r = 0; r < std::min(rows_of_unit(), depth - k); ++r) {
          const Index row = k + r, column = j + c, i = c * rows_of_unit() + r;
          to[transposed ? column * depth + row : (e * depth + row) * columns + column] =
              form == Weights::unchanged ? value<float>(data + at, i) : float(value<Bfloat16>(data + at, i));
        }
    });
  }

 private:
  /// The place of a number q in a unit of quantised weights: its byte, and its lowest bit in this byte.
  struct Place {
    Index byte;
    int shift;
  };
  Place place_of(Index row, Index column) const {
    const Index of_byte = WeightRounding{form}.halves() ? row % 16 : row;
    return {width * static_cast<Index>(sizeof(Bfloat16)) + (of_byte / 4 * width + column) * 4 + of_byte % 4,
            of_byte == row ? 0 : 4};
  }
  std::byte mask() const { return WeightRounding{form}.halves() ? std::byte{15} : std::byte{255}; }
  /// Returns the byte in which all numbers q are 0. int4 stores q + 8, which is the four bits of q with the highest bit
  /// inverted, so an exclusive or with this byte converts in both directions.
  std::byte zero() const { return form == Weights::int4 ? std::byte{0x88} : std::byte{0}; }
  Bfloat16 scaled(Bfloat16 scale, float factor) const {
    return form == Weights::mxfp4 ? Bfloat16::from(float(scale) * factor) : scale;
  }
  /// Reads element i of an array at any address.
  template <class T>
  static T value(const std::byte* from, Index i) {
    T v;
    std::memcpy(&v, from + i * static_cast<Index>(sizeof(T)), sizeof(T));
    return v;
  }
  /// Calls f(expert, row, column, offset) for each unit, with its first row and column, in the order of memory.
  template <class F>
  void each_unit(const F& f) const {
    const Index rows = rows_of_unit(), in_block = block / rows;
    Index at = 0;
    for (Index e = 0; e < experts; ++e)
      for (Index first = 0; first < units; first += in_block)
        for (Index j = 0; j < columns; j += width)
          for (Index u = first; u < std::min(first + in_block, units); ++u, at += width * bytes_of_column())
            f(e, u * rows, j, at);
  }
};

}  // namespace gatefold
