// expect: gatefold: the second part of a Residual must be a branch with in_dim\(\) and out_dim\(\), for example Mixture\{gate, expert\} or Attention; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxTopK gate{.scores = {.experts = 3}};
#ifndef GATEFOLD_FAIL
  const Residual layer{update::Plain{}, Mixture{gate, Linear{.model_dim = 2}}};
#else
  const Residual layer{update::Plain{}, gate};
#endif
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
