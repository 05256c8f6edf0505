// expect: gatefold: copy tensors and packs with clone: auto best = clone\(ctx, trainer\.params\)
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxTopK gate{.scores = {.experts = 4}, .selection = {.k = 2}};
  const Stack model{Residual{update::HeavyBall{}, Mixture{gate, Mlp<Gelu>{8, 16}}}, 2};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
#ifndef GATEFOLD_FAIL
  auto best = clone(ctx, trainer.params);
#else
  auto best = trainer.params;
#endif
}
