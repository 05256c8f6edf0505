#include "gatefold/gate/scores/count_experts.hpp"

#include <doctest/doctest.h>

using namespace gatefold;

TEST_CASE("count_experts: reads a member or a function of the scores") {
  struct Option {
    Index experts = 5;
  };
  struct Function {
    Index experts() const { return 7; }
  };
  CHECK(count_experts(Option{}) == 5);
  CHECK(count_experts(Function{}) == 7);
}
