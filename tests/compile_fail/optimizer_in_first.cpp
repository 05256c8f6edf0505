// expect: gatefold: this is an optimizer \(gatefold::optim\), which steps parameters; First\{a, b\} takes two update rules \(gatefold::update\); see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Rule = update::Adam;
#else
using Rule = optim::AdamW;
#endif

int main() {
  Cpu::Context ctx;
  const Residual layer{update::First{Rule{}, update::HeavyBall{}}, OneExpert{Linear{.model_dim = 2}}};
  Trainer trainer{ctx, Stack{layer, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
