#include <doctest/doctest.h>

#include "gatefold/gatefold.hpp"
#include "support/bf16_deep.hpp"

using namespace gatefold;
using namespace gatefold::test;

TEST_CASE("CpuBf16: deep layers match double layers that round equally") {
  for_each_deep_layer<RoundedDouble>([](const auto& rounded) {
    CpuBf16::Context one(1), two(2, true);
    const auto outcome = test::outcome(rounded.template run<float, CpuBf16>(one));
    rounded.expect(outcome);
    CHECK(same(outcome, test::outcome(rounded.template run<float, CpuBf16>(two))));
  });
}
