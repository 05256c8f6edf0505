// expect: gatefold: ExpertRates wraps AdamW or Sgd directly; put other wrappers outside it: optim::Clipped\{optim::ExpertRates\{optim::AdamW\{\}, factor\}, 1\.0\}
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  const auto factor = [](const Name&, Index e) { return e == 3 ? 0.1 : 1.0; };
#ifndef GATEFOLD_FAIL
  const optim::Clipped optimizer{optim::ExpertRates{optim::AdamW{}, factor}, 1.0};
#else
  const optim::ExpertRates optimizer{optim::Clipped{optim::AdamW{}, 1.0}, factor};
#endif
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}}, Linear{.model_dim = 8}};
  Trainer trainer{ctx, mixture, MeanSquaredError{}, optimizer, Seed{1}};
  const Tensor<float, 2, Cpu> x(2, 8);
  trainer.step(x, x);
}
