// Layers whose products are large enough for Hopper's kernel, forward and backward, beside plain loops.

#include <doctest/doctest.h>

#include "support/bf16_layers.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 136, items = 150;

template <class E>
void check(const E& expert) {
  REQUIRE(device::device_code() == device::DeviceCode::hopper);
  REQUIRE(device::bf16_tile_rows(items, 2) == device::Bf16ManyRows::rows);  // and dim columns: uses_hopper
  // A tensor core cuts each of the nine sums of 16 products behind a hidden value at some 2^-24: one in 2^12 or so is
  // rounded to the other neighbour, and an output has 130 of them.
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 1}}, expert};
  check_bf16_layer(Residual{update::Plain{}, mixture}, items, dim, 0.1);
}

}  // namespace

TEST_CASE("cuda: layers by Hopper's kernel") {
  SUBCASE("Mlp") { check(Mlp<Gelu>{.model_dim = dim, .hidden_dim = 130}); }
  SUBCASE("GatedMlp") { check(GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 136}); }
}
