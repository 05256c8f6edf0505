// expect: gatefold: a MultiTask takes one target for each of its tasks, in braces: trainer\.step\(x, \{prices, labels\}\); see docs/how-to/tabular\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const OneExpert model{Linear{.model_dim = 3}};
  const MultiTask losses{TaskLoss{1, MeanSquaredError{}}, TaskLoss{2, CrossEntropy{}}};
  Trainer trainer{ctx, model, losses, optim::Sgd{}, Seed{1}};
  Tensor<float, 2, Cpu> x(4, 3), prices(4, 1);
  Tensor<Index, 1, Cpu> labels(4);
#ifndef GATEFOLD_FAIL
  trainer.step(x, {prices, labels});
#else
  trainer.step(x, prices);
#endif
}
