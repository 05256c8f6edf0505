// expect: gatefold: expected an update rule as first part of a Residual, got a gate, an expert, a norm, a branch or a layer: Residual\{rule, branch\}, for example update::HeavyBall\{\} and Mixture\{gate, expert\}; see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Rule = update::HeavyBall;
#else
using Rule = Linear;
#endif

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
  Trainer trainer{ctx, Stack{Residual{Rule{}, branch}, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
