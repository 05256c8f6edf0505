#include "gatefold/policy/initial.hpp"

#include <doctest/doctest.h>

using namespace gatefold;

// tests/backend/initial_values_test.cpp tests the values that these options give.

TEST_CASE("Initial: presets name their law; torch.nn.Linear is the default") {
  CHECK(Initial{}.law == Initial::Law::fan_in);
  CHECK(Initial{}.scale == 1);
  CHECK_FALSE(Initial{}.shared);
  CHECK(Initial::reference().law == Initial::Law::reference);
  CHECK(Initial::normal(0.3).law == Initial::Law::normal);
  CHECK(Initial::normal(0.3).scale == 0.3);
  CHECK(Initial::zero().law == Initial::Law::zero);
}
