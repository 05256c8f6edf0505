// expect: gatefold: an AttentionAware gate needs an attention trace: wrap attention and layer in Block\{attention, layer\}, or pass the trace in the extra; see docs/reference/inputs\.md#inputs-of-the-librarys-gates
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Residual layer{update::HeavyBall{},
                       Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}}, Linear{.model_dim = 2}}};
#ifndef GATEFOLD_FAIL
  const Block block{Residual{update::Plain{}, Attention{.model_dim = 2}}, layer};
  Trainer trainer{ctx, Stack{block, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
#else
  Trainer trainer{ctx, Stack{layer, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
#endif
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}
