#include "gatefold/core/weights.hpp"

#include <doctest/doctest.h>

using namespace gatefold;

TEST_CASE("Weights: forms of 8 and 4 bits are quantised") {
  CHECK(!is_quantised(Weights::unchanged));
  CHECK(!is_quantised(Weights::bfloat16));
  CHECK(is_quantised(Weights::int8));
  CHECK(is_quantised(Weights::int4));
  CHECK(is_quantised(Weights::mxfp4));
}
