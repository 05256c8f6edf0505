// expect: gatefold: a Trainer is made of these, in this order: Trainer\{ctx, model, loss, optimizer, Seed\{1\}\}, ctx a context with a name, and Element<double>\{\} after the seed where it computes in double; see docs/how-to/your_data\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifndef GATEFOLD_FAIL
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
#else
  Trainer trainer{Cpu::Context{}, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
#endif
}
