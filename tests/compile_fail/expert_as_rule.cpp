// expect: gatefold: this is no update rule: a gate, an expert, a norm, a branch or a layer stands in its place; Residual\{rule, branch\}: update::HeavyBall\{\} and Mixture\{gate, expert\}, say; see docs/how-to/extending\.md#rule
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
