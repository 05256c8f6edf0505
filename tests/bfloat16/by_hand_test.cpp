#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"
#include "support/bf16_by_hand.hpp"

using namespace gatefold;
using namespace gatefold::test;

TEST_CASE("CpuBf16: experts give what loops give that round as docs/explanation/bfloat16.md says") {
  by_hand::check_experts<float, CpuBf16>();
}
TEST_CASE("what other tests take for expected rounds like that too") {
  by_hand::check_experts<double, RoundedDouble>();
}
