#include "gatefold/backend/operands.hpp"

#include <doctest/doctest.h>

#include <type_traits>

using namespace gatefold;

TEST_CASE("RoundedFloats: rounds float to bfloat16 and keeps double") {
  CHECK(std::is_same_v<AsTheyAre::Of<float>, float>);
  CHECK(std::is_same_v<AsTheyAre::Of<double>, double>);
  CHECK(std::is_same_v<RoundedFloats::Of<float>, Bfloat16>);
  CHECK(std::is_same_v<RoundedFloats::Of<double>, double>);
}
