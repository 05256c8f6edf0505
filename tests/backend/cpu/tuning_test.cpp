#include "gatefold/backend/cpu/tuning.hpp"

#include <doctest/doctest.h>

#include <Eigen/Core>

using namespace gatefold;
using cpu::Tile;

TEST_CASE_TEMPLATE("tuning: a tile and its operands fit the registers", T, float, double) {
  constexpr Index registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;
  CHECK(Tile<T>::rows * 2 + 3 <= registers);  // sums, two of B, one of A
  CHECK(Tile<T>::columns == 2 * cpu::Register<T>::size);
  CHECK(Tile<T>::depth == 256);  // part of the definition of every result
  CHECK(Tile<T>::depth % Tile<T>::columns == 0);
  CHECK((Tile<T>::stride - Tile<T>::depth) * Index(sizeof(T)) == 64);
}

TEST_CASE("tuning: fewer registers give smaller tiles") {
  CHECK(cpu::with_16_registers.tile_rows < cpu::with_32_registers.tile_rows);
  CHECK(cpu::tuning.product_columns % Tile<float>::columns == 0);
}
