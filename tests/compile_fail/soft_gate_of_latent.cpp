// expect: gatefold: the gate of a LatentMixture must write a SparsePlan, because the experts read a projection of the items; the slots of a SoftMoe are not items; see docs/how-to/extending\.md#gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const SoftmaxDense gate{.scores = {.experts = 2}};
#else
const SoftMoe gate{.count = 2};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, LatentMixture{Mixture{gate, Linear{.model_dim = 2}}, 4}, MeanSquaredError{}, optim::Sgd{},
                  Seed{1}};
}
