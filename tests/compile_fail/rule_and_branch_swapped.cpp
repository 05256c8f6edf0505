// expect: gatefold: rule and branch are swapped: Residual\{rule, branch\}; see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
#ifndef GATEFOLD_FAIL
  const Stack model{Residual{update::HeavyBall{}, branch}, 2};
#else
  const Stack model{Residual{branch, update::HeavyBall{}}, 2};
#endif
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
