// expect: gatefold: the gate of a Competition must be a ComposedGate, for example SoftmaxTopK, because the router loss needs its probabilities; see docs/how-to/routers\.md#competition-between-experts
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const SoftmaxTopK gate{.scores = {.experts = 2}};
#else
const HashGate gate{.count = 2};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Competition{Mixture{gate, Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
