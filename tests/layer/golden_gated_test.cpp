// Stacks of mixtures of gated experts, compared with PyTorch: tests/golden/layers.py.

#include <doctest/doctest.h>

#include "gatefold/expert/gated_mlp.hpp"
#include "support/golden_stacks.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: plain GatedMlp stack with auxiliary losses agrees with PyTorch") {
  stack_agrees<GatedMlp<Silu>>("plain_gated_losses", plain, with_losses);
}

TEST_CASE("golden: renormalised heavy-ball GatedMlp stack agrees with PyTorch") {
  stack_agrees<GatedMlp<Silu>>("heavy_ball_gated_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: negative momentum, GatedMlp and losses agree with PyTorch") {
  stack_agrees<GatedMlp<Silu>>("heavy_ball_gated_losses", heavy_ball, with_losses);
}
