// expect: gatefold: this is an optimizer \(gatefold::optim\), which steps parameters; a residual layer needs an update rule \(gatefold::update\); see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Rule = update::HeavyBall;
#else
using Rule = optim::AdamW;
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{Rule{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
