// expect: gatefold: gate and expert are swapped: MultiGate\{gate, expert, tasks\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxDense gate{.scores = {.experts = 2}};
  const Linear linear{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const MultiGate branch{gate, linear, 2};
#else
  const MultiGate branch{linear, gate, 2};
#endif
  Trainer trainer{ctx, branch, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
