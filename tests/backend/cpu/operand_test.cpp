#include "gatefold/backend/cpu/operand.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace gatefold;
using cpu::Operand;

TEST_CASE("eq. (1): element by row and column, gathered or not") {
  const std::vector<float> data{0, 1, 2, 3, 4, 5};  // [3, 2]
  const std::vector<Index> rows{2, 0};
  const Operand<float> plain{data.data(), 2, true}, gathered{data.data(), 2, true, rows.data()};
  CHECK(*plain.at(1, 1) == 3);
  CHECK(*gathered.at(0, 1) == 5);
  CHECK(*gathered.at(1, 0) == 0);
}
