// expect: gatefold: expected a branch, got a layer: write Residual\{rule, PreNorm\{norm, branch\}\}, with the rule outside and the norm inside, or join layers with Chain\{a, b\}; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
#ifndef GATEFOLD_FAIL
  const Residual layer{update::HeavyBall{}, PreNorm{LayerNorm{}, branch}};
#else
  const PreNorm layer{LayerNorm{}, Residual{update::HeavyBall{}, branch}};
#endif
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
