#include "gatefold/core/weights.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace gatefold;

TEST_CASE("Weights: only forms of 8 and 4 bits are quantised") {
  CHECK(!is_quantised(Weights::unchanged));
  CHECK(!is_quantised(Weights::bfloat16));
  CHECK(is_quantised(Weights::int8));
  CHECK(is_quantised(Weights::int4));
  CHECK(is_quantised(Weights::mxfp4));
}

TEST_CASE("Weights: an odd address marks weights without elements") {
  alignas(double) const double w[2] = {};
  CHECK(has_elements(w));
  CHECK(has_elements(static_cast<const float*>(nullptr)));
  CHECK_NOTHROW(expect_elements("here", w));
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const auto* const odd = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(w) + 1);
  CHECK(!has_elements(odd));
  CHECK_THROWS_WITH_AS(expect_elements("here", odd),
                       "here: weights: expected weights with elements, or the frozen parameters that have their packed "
                       "copy, got parameters without elements; pass the FrozenParams to infer",
                       ArgumentError);
}
