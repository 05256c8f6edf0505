// expect: gatefold: a MultiGate takes a gate, an expert and the number of tasks: MultiGate\{gate, expert, tasks\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  const SoftmaxDense gate{.scores = {.experts = 2}};
  const Linear linear{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const MultiGate branch{gate, linear, 2};
#else
  const MultiGate branch{gate, linear, linear};
#endif
  return static_cast<int>(branch.in_dim());
}
