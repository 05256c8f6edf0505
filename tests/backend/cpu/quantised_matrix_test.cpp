#include "gatefold/backend/cpu/quantised_matrix.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>

using namespace gatefold;
using cpu::QuantisedMatrix;
using cpu::Tile;

TEST_CASE("QuantisedMatrix: places the groups of all panels without gaps") {
  constexpr Index width = Tile<float>::columns, block = Tile<float>::depth;
  for (const auto& [depth, columns] :
       {std::array<Index, 2>{1, 1}, {block, width}, {block + 33, 3 * width + 1}, {3 * block, 2}}) {
    Index next = 0;
    for (Index k = 0; k < depth; k += block)
      for (Index j = 0; j < columns; j += width) {
        const Index length = std::min(block, depth - k);
        CHECK(QuantisedMatrix::at(columns, k, length, j) == next);
        next += (length + 31) / 32;
      }
    CHECK(QuantisedMatrix::size(depth, columns) == next);
  }
}

TEST_CASE("QuantisedMatrix: counts offsets in groups of the format") {
  const cpu::QuantisedFormat format{Weights::int8, 17, nullptr, nullptr, nullptr, nullptr};
  const std::byte bytes[60]{};
  const QuantisedMatrix matrix{bytes, &format};
  CHECK((matrix + 3).data == bytes + 51);
  CHECK((matrix + 3).format == &format);
  CHECK(!QuantisedMatrix{});
  CHECK((QuantisedMatrix{} + 3).data == nullptr);
}
