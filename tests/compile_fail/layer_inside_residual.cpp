// expect: gatefold: expected a branch, got a layer: write Residual\{rule, PreNorm\{norm, branch\}\}, with the rule outside and the norm inside, or join layers with Chain\{a, b\}; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
  const Block block{Residual{update::Plain{}, Attention{.model_dim = 2}}, Residual{update::HeavyBall{}, branch}};
#ifndef GATEFOLD_FAIL
  const Stack model{block, 2};
#else
  const Stack model{Residual{update::HeavyBall{}, block}, 2};
#endif
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
