// expect: gatefold: DataParallel knows the global norm of all gradients and no other measure of them
#include <gatefold/gatefold.hpp>

#include "gatefold/dist/data_parallel.hpp"

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Optimizer = optim::NormalizedGd;
#else
using Optimizer = optim::Clipped<optim::Sgd>;
#endif

void run(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
  Trainer trainer{ctx, Linear{.model_dim = 8}, MeanSquaredError{}, dist::DataParallel{Optimizer{}, &shard}, Seed{1}};
  const Tensor<float, 2, Cpu> x(2, 8);
  trainer.step(x, x);
}
