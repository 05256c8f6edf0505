// expect: gatefold: the element type of a model must be float or double, for example init<float, Cpu>\(ctx, seed\) or Trainer\{\.\.\., Seed\{1\}, Element<double>\{\}\}; see docs/how-to/your_data\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using T = double;
#else
using T = int;
#endif

int main() {
  Cpu::Context ctx;
  const Stack model{
      Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}}}, 2};
  model.init<T, Cpu>(ctx, Seed{1});
  Linear{.model_dim = 2}.init<T, Cpu>(ctx, 3, Seed{1});
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}, Element<T>{}};
}
