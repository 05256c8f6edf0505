// expect: gatefold: this is not a loss \(for example MeanSquaredError, CrossEntropy, Logistic\), because it has no template Target<T, B>; use Trainer\{ctx, model, loss, optimizer, Seed\{1\}\}; see docs/how-to/your_data\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Loss = MeanSquaredError;
#else
using Loss = Linear;
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, Loss{}, optim::Sgd{}, Seed{1}};
}
