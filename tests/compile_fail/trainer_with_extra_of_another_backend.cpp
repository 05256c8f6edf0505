// expect: gatefold: these extra inputs belong to another model, element type or backend: use decltype\(trainer\)::Extra; see docs/reference/inputs\.md
#include <gatefold/gatefold.hpp>

int main() {
  using namespace gatefold;
#if defined(GATEFOLD_FAIL)
  using B = Cpu;
#else
  using B = CpuBf16;
#endif
  CpuBf16::Context ctx;
  const Mixture model{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Linear{.model_dim = 8}};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, CpuBf16> x(3, 8), target(3, 8);
  const Extra<decltype(model), float, B> extra;
  trainer.step(x, target, extra);
}
