// expect: gatefold: construct a Trainer from these arguments, in this order: Trainer\{ctx, model, loss, optimizer, Seed\{1\}\}; ctx must be a variable, not a temporary; for double add Element<double>\{\} after the seed; see docs/how-to/your_data\.md
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
