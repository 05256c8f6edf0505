#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"
#include "support/bf16_by_hand.hpp"

using namespace gatefold;
using namespace gatefold::test;

TEST_CASE("CpuBf16: experts round as docs/explanation/bfloat16.md defines") {
  by_hand::check_experts<float, CpuBf16>();
}
TEST_CASE("RoundedDouble: rounds like CpuBf16") { by_hand::check_experts<double, RoundedDouble>(); }
