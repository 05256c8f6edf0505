// expect: gatefold: construct a Trainer from these arguments, in this order: Trainer\{ctx, model, loss, optimizer, Seed\{1\}\}; ctx must be a variable, not a temporary; for double add Element<double>\{\} after the seed; see docs/how-to/your_data\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Number = Seed;
#else
using Number = int;
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Number{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
