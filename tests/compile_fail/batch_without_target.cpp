// expect: gatefold: step takes items and their target, trainer\.step\(x, target\), and optionally extra inputs such as noise, a decltype\(trainer\)::Extra; for outputs without a target use trainer\.infer\(x, y\); see docs/how-to/your_data\.md
// expect: gatefold: accumulate takes items and their target, trainer\.accumulate\(x, target\); see docs/how-to/your_data\.md
// expect: gatefold: evaluate takes items and their target, trainer\.evaluate\(x, target\); for outputs without a target use trainer\.infer\(x, y\); see docs/how-to/your_data\.md
// expect: gatefold: infer writes its result to y, which must exist before the call: Tensor<float, 2, Cpu> y\(N, out_dim\); trainer\.infer\(x, y\); see docs/how-to/serving\.md
// expect: gatefold: gradients takes items and their target, trainer\.gradients\(x, target\)
// expect: gatefold: evaluate takes items and their target, trainer\.evaluate\(x, target\)
// expect: gatefold: step takes items and their target, run\.step\(x, target\)
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/three_stage.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  Tensor<float, 2, Cpu> x(3, 2), y(3, 2);
  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.experts = 2}}, Linear{.model_dim = 2}};
  Trainer trainer{ctx, mixture, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  RoutedTrainer routed{ctx, mixture, MeanSquaredError{}, Seed{1}};
  ThreeStage run{ctx, mixture, MeanSquaredError{}, Stages{}, Seed{1}};
#ifndef GATEFOLD_FAIL
  trainer.step(x, y);
  trainer.accumulate(x, y);
  trainer.evaluate(x, y);
  trainer.infer(x, y);
  routed.gradients(x, y);
  routed.evaluate(x, y);
  run.step(x, y);
#else
  trainer.step(x);
  trainer.accumulate(x);
  trainer.evaluate(x);
  const auto z = trainer.infer(x);
  routed.gradients(x);
  routed.evaluate(x);
  run.step(x);
#endif
}
