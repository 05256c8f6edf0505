// expect: gatefold: a RoutedTrainer or ThreeStage takes a Mixture\{gate, expert\}, in one process
#include <gatefold/gatefold.hpp>

#include <gatefold/papers/routed_trainer.hpp>
#include "gatefold/distributed.hpp"

using namespace gatefold;

double run([[maybe_unused]] dist::Shard<dist::Alone>& shard, Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x) {
  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.experts = 4}}, Linear{.model_dim = 8, .output_dim = 1}};
#ifdef GATEFOLD_FAIL
  const dist::ExpertParallel experts{mixture, &shard};
#else
  const Mixture experts = mixture;
#endif
  RoutedTrainer trainer{ctx, experts, Logistic{}, Seed{1}};
  return trainer.gradients(x, Tensor<float, 2, Cpu>(x.extent(0), 1)).router;
}
