#include "gatefold/backend/cpu/weight_path.hpp"

#include <doctest/doctest.h>

using gatefold::cpu::WeightPath;

TEST_CASE("WeightPath: values are numbered without gaps") {
  constexpr int paths = 4;
  CHECK(static_cast<int>(WeightPath::prepacked) == 0);
  CHECK(static_cast<int>(WeightPath::by_task) == paths - 1);
}
