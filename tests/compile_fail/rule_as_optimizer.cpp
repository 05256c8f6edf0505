// expect: gatefold: a Trainer needs an optimizer \(gatefold::optim\), which steps parameters; update rules \(gatefold::update\) belong in a Residual; your own optimizer must declare using IsOptimizer = void; see docs/how-to/extending_parts\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Optimizer = optim::Sgd;
#else
using Optimizer = update::HeavyBall;
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Optimizer{}, Seed{1}};
}
