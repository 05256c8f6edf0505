// expect: gatefold: a Residual needs a branch, got an expert: write Residual\{rule, OneExpert\{expert\}\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Linear expert{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const Residual layer{update::Plain{}, OneExpert{expert}};
#else
  const Residual layer{update::Plain{}, expert};
#endif
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
