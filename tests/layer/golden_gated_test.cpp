// Stacks of mixtures of gated experts, compared with PyTorch: tests/golden/layers.py.

#include <doctest/doctest.h>

#include "gatefold/expert/gated_mlp.hpp"
#include "support/golden_stacks.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: plain residual stack, gated experts, balance, z loss") {
  stack_agrees<GatedMlp<Silu>>("plain_gated_losses", plain, with_losses);
}

TEST_CASE("golden: heavy-ball stack, gated experts, renormalised") {
  stack_agrees<GatedMlp<Silu>>("heavy_ball_gated_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: heavy-ball stack, negative momentum, gated experts, auxiliary losses") {
  stack_agrees<GatedMlp<Silu>>("heavy_ball_gated_losses", heavy_ball, with_losses);
}
