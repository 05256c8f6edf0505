// expect: gatefold: a Trainer is made of these, in this order: Trainer\{ctx, model, loss, optimizer, Seed\{1\}\}, ctx a context with a name, and Element<double>\{\} after the seed where it computes in double; see docs/how-to/your_data\.md
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
