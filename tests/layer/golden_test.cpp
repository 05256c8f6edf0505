// Stacks of mixtures of MLP experts, compared with PyTorch: tests/golden/layers.py.

#include <doctest/doctest.h>

#include "gatefold/expert/mlp.hpp"
#include "support/golden_stacks.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: plain residual stack, MLP experts, softmax of all logits") {
  stack_agrees<Mlp<Gelu>>("plain_mlp", plain, top_k);
}

TEST_CASE("golden: plain stack, renormalised weights: has the stored results") {
  stack_agrees<Mlp<Gelu>>("plain_mlp_renormalised", plain, top_k);
}

TEST_CASE("golden: heavy-ball stack, MLP experts, renormalised") {
  stack_agrees<Mlp<Gelu>>("heavy_ball_mlp_renormalised", heavy_ball, top_k);
}

TEST_CASE("golden: heavy-ball stack, MLP experts, balance and z loss") {
  stack_agrees<Mlp<Gelu>>("heavy_ball_mlp_losses", heavy_ball, with_losses);
}
