// expect: gatefold: gate and expert are swapped: Mixture\{gate, expert\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxTopK gate{.scores = {.experts = 3}};
  const Linear expert{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const Stack model{Residual{update::HeavyBall{}, Mixture{gate, expert}}, 2};
#else
  const Stack model{Residual{update::HeavyBall{}, Mixture{expert, gate}}, 2};
#endif
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
