// expect: gatefold: the gate of a MultiGate must write a SparsePlan, because the tasks share the slots of an item; the slots of a SoftMoe are not items; see docs/how-to/extending\.md#gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const SoftmaxDense gate{.scores = {.experts = 2}};
#else
const SoftMoe gate{.count = 2};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, MultiGate{gate, Linear{.model_dim = 2}, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
