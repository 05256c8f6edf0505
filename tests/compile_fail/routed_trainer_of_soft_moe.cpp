// expect: gatefold: a RoutedTrainer or ThreeStage takes a gate that picks experts for each item
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/routed_trainer.hpp>

using namespace gatefold;

double run(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x) {
#ifdef GATEFOLD_FAIL
  const SoftMoe gate{.model_dim = 8, .count = 4};
#else
  const SoftmaxTopK gate{.scores = {.experts = 4}};
#endif
  const Mixture mixture{gate, Linear{.model_dim = 8, .output_dim = 1}};
  RoutedTrainer trainer{ctx, mixture, Logistic{}, Seed{1}};
  return trainer.gradients(x, Tensor<float, 2, Cpu>(x.extent(0), 1)).router;
}
