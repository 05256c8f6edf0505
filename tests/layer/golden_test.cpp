// Stacks of mixtures of MLP experts, compared with PyTorch: tests/golden/layers.py.

#include <doctest/doctest.h>

#include "gatefold/expert/mlp.hpp"
#include "support/golden_stacks.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: plain Mlp stack without renormalising agrees with PyTorch") {
  stack_agrees<Mlp<Gelu>>("plain_mlp", plain, top_k);
}

TEST_CASE("golden: renormalised plain Mlp stack agrees with PyTorch") {
  stack_agrees<Mlp<Gelu>>("plain_mlp_renormalised", plain, top_k);
}

TEST_CASE("golden: renormalised heavy-ball Mlp stack agrees with PyTorch") {
  stack_agrees<Mlp<Gelu>>("heavy_ball_mlp_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: heavy-ball Mlp stack with auxiliary losses agrees with PyTorch") {
  stack_agrees<Mlp<Gelu>>("heavy_ball_mlp_losses", heavy_ball, with_losses);
}
