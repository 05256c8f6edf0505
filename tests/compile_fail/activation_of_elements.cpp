// expect: gatefold: Mlp<Activation> takes an activation, for example Mlp<Gelu>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#if defined(GATEFOLD_FAIL)
using Activation = float;
#else
using Activation = Gelu;
#endif

int main() {
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 4}}, Mlp<Activation>{8, 8}};
  Trainer trainer{ctx, branch, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
