#include "gatefold/backend/cpu/weight_path.hpp"

#include <doctest/doctest.h>

using gatefold::cpu::WeightPath;

TEST_CASE("paths are numbered without gaps, so that whoever counts them has a place for each") {
  constexpr int paths = 4;
  CHECK(static_cast<int>(WeightPath::prepacked) == 0);
  CHECK(static_cast<int>(WeightPath::by_task) == paths - 1);
}
