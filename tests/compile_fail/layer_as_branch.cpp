// expect: gatefold: this is a layer, and a branch is needed here: Residual\{rule, PreNorm\{norm, branch\}\} has the rule outside and the norm inside, and layers follow each other in a Chain\{a, b\}; see docs/how-to/extending\.md#branch
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
