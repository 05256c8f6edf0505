// expect: gatefold: Scheduled\{optimizer, schedule\} takes a schedule, whose factor\(step\), a double, multiplies the learning rate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

void run(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x) {
#ifdef GATEFOLD_FAIL
  const optim::Scheduled scheduled{optim::AdamW{}, 3};
#else
  const optim::Scheduled scheduled{optim::AdamW{}, optim::Warmup{3}};
#endif
  Trainer trainer{ctx, OneExpert{Linear{.model_dim = 2}}, MeanSquaredError{}, scheduled, Seed{1}};
  trainer.step(x, x);
}
