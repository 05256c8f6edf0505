#include "gatefold/backend/cpu/packed_matrix.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

using namespace gatefold;
using cpu::PackedMatrix;
using cpu::Tile;

TEST_CASE_TEMPLATE("PackedMatrix: places the panels of all blocks without gaps", T, float, double) {
  constexpr Index width = Tile<T>::columns, block = Tile<T>::depth;
  for (const auto& [depth, columns] :
       {std::array<Index, 2>{1, 1}, {block, width}, {block + 5, 3 * width + 1}, {3 * block, 2}}) {
    Index next = 0;
    for (Index k = 0; k < depth; k += block)
      for (Index j = 0; j < columns; j += width) {
        const Index length = std::min(block, depth - k);
        CHECK(PackedMatrix<T>::at(columns, k, length, j) == next);
        next += length * width;
      }
    CHECK(PackedMatrix<T>::size(depth, columns) == next);
  }
}

TEST_CASE("PackedMatrix: adds offsets, detects null, widens rounded panels") {
  std::vector<Bfloat16> half;
  for (int i = 0; i < 3 * Tile<float>::columns; ++i) half.push_back(Bfloat16::from(static_cast<float>(i)));
  const std::vector<float> values(3);
  const float* const full = values.data();
  const PackedMatrix<float> none{}, plain{full, nullptr}, rounded{nullptr, half.data()};
  CHECK(!none);
  CHECK(!(none + 3));
  CHECK((plain + 2).full == full + 2);
  std::vector<float> buffer(2 * Tile<float>::columns);
  CHECK(plain.panel(1, 1, buffer.data()) == full + 1);
  const float* panel = (rounded + Tile<float>::columns).panel(0, 2, buffer.data());
  REQUIRE(panel == buffer.data());
  for (int i = 0; i < 2 * Tile<float>::columns; ++i) CHECK(panel[i] == static_cast<float>(Tile<float>::columns + i));
  panel = rounded.panel(2 * Tile<float>::columns, 1, buffer.data());
  for (int i = 0; i < Tile<float>::columns; ++i) CHECK(panel[i] == static_cast<float>(2 * Tile<float>::columns + i));
}
