#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gatefold/backend/weight_rounding.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold {

/// The order of quantised weights [E, depth, columns] in files, which does not depend on the backend or the processor:
///
///     numbers  int8: [E, depth, columns], a signed byte q for each weight
///              int4, mxfp4: [E, ⌈depth / 2⌉, columns], rows 2 i in the lower and 2 i + 1 in the upper half of a byte
///     scales   [E, ⌈depth / 32⌉, columns] bfloat16: s
///
/// int4 stores q in two's complement. mxfp4 stores a bit of sign, two of exponent and one of mantissa. The functions
/// read_quantised and write_quantised of a backend copy weights from and to this order.
struct QuantisedBytes {
  Weights form;
  Index experts, depth, columns;

  bool halves() const { return WeightRounding{form}.halves(); }
  Index number_rows() const { return halves() ? divide_up(depth, Index(2)) : depth; }
  Index scale_rows() const { return divide_up(depth, Index(WeightRounding::size)); }
  Index numbers() const { return experts * number_rows() * columns; }
  Index scales() const { return experts * scale_rows() * columns; }
  /// Returns the index in `numbers` of the byte that holds the quantised number q of a weight.
  Index number_at(Index e, Index row, Index column) const {
    return (e * number_rows() + (halves() ? row / 2 : row)) * columns + column;
  }
  /// Returns the position of the scale of a weight.
  Index scale_at(Index e, Index row, Index column) const {
    return (e * scale_rows() + row / WeightRounding::size) * columns + column;
  }
  /// Returns the position of the lowest bit of a weight's number in its byte: 0 or 4.
  int shift(Index row) const { return halves() && row % 2 == 1 ? 4 : 0; }

  /// Returns the rounded weight ŵ in a row and column of expert e.
  float value(const std::byte* numbers, const Bfloat16* scales, Index e, Index row, Index column) const {
    const auto byte = std::to_integer<std::uint32_t>(numbers[number_at(e, row, column)]);
    const WeightRounding rounding{form};
    return rounding.value(rounding.stored(byte >> shift(row)), float(scales[scale_at(e, row, column)]));
  }
  /// Returns the position of the first invalid number, or −1 if there is none. Only int8 has an invalid number, −128.
  Index wrong_number(const std::byte* numbers) const {
    if (halves()) return -1;
    const std::byte* const end = numbers + this->numbers();
    const std::byte* const found = std::find(numbers, end, std::byte{0x80});
    return found == end ? -1 : found - numbers;
  }
  /// Returns the position of a scale that is infinite or NaN. Returns −1 if there is none.
  Index wrong_scale(const Bfloat16* scales) const {
    const Bfloat16* const end = scales + this->scales();
    const Bfloat16* const found = std::find_if(scales, end, [](Bfloat16 s) { return (s.bits & 0x7f80) == 0x7f80; });
    return found == end ? -1 : found - scales;
  }
};

}  // namespace gatefold
