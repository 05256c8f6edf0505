#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/quantised_format.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/quantised_bytes.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Calls f(expert, row, column, number of the group) for each group of 32 rows of a panel of quantised weights.
template <class F>
void each_group(const QuantisedBytes& of, const F& f) {
  for (Index e = 0; e < of.experts; ++e)
    for (Index first = 0; first < of.depth; first += Tile<float>::depth)
      for (Index j = 0; j < of.columns; j += Tile<float>::columns) {
        const Index length = std::min(Tile<float>::depth, of.depth - first);
        Index group =
            e * QuantisedMatrix::size(of.depth, of.columns) + QuantisedMatrix::at(of.columns, first, length, j);
        for (Index k = first; k < first + length; k += group_size) f(e, k, j, group++);
      }
}

/// Writes the numbers and scales of the matrix w in the order of files.
inline void write_quantised(const QuantisedBytes& of, QuantisedMatrix w, std::byte* numbers, Bfloat16* scales) {
  constexpr Index width = Tile<float>::columns;
  std::memset(numbers, 0, static_cast<std::size_t>(of.numbers()));
  each_group(of, [&](Index e, Index k, Index j, Index group) {
    std::int8_t q[std::size_t{group_size} * std::size_t{width}];
    Bfloat16 s[std::size_t{width}];
    w.format->unpack((w + group).data, q, s);
    for (Index c = 0; c < std::min(width, of.columns - j); ++c) {
      scales[of.scale_at(e, k, j + c)] = s[c];
      for (Index i = 0; i < std::min(group_size, of.depth - k); ++i) {
        const auto number = static_cast<unsigned>(q[i * width + c]);
        std::byte& to = numbers[of.number_at(e, k + i, j + c)];
        to |= static_cast<std::byte>(of.halves() ? (number & 15) << of.shift(k + i) : number & 255);
      }
    }
  });
}

/// Packs numbers and scales in the order of files into the memory of a quantised matrix.
/// @pre wrong_number and wrong_scale return −1
inline void read_quantised(const QuantisedBytes& of, const std::byte* numbers, const Bfloat16* scales, std::byte* to) {
  constexpr Index width = Tile<float>::columns;
  const QuantisedFormat& format = *quantised_format<float>(of.form);
  each_group(of, [&](Index e, Index k, Index j, Index group) {
    std::int8_t q[std::size_t{group_size} * std::size_t{width}] = {};
    Bfloat16 s[std::size_t{width}] = {};
    for (Index c = 0; c < std::min(width, of.columns - j); ++c) {
      s[c] = scales[of.scale_at(e, k, j + c)];
      for (Index i = 0; i < std::min(group_size, of.depth - k); ++i) {
        const auto byte = std::to_integer<std::uint32_t>(numbers[of.number_at(e, k + i, j + c)]);
        q[i * width + c] = static_cast<std::int8_t>(WeightRounding{of.form}.stored(byte >> of.shift(k + i)));
      }
    }
    format.repack(q, s, to + group * format.group_bytes);
  });
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
