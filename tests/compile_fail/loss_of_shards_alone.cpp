// expect: gatefold: on shards a Trainer needs both dist::LossOfShards\{loss, &shard\} and dist::DataParallel
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void run(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
#ifdef GATEFOLD_FAIL
  const optim::Sgd optimizer{};
#else
  const dist::DataParallel optimizer{optim::Sgd{}, &shard};
#endif
  Trainer trainer{ctx, Linear{.model_dim = 8}, dist::LossOfShards{MeanSquaredError{}, &shard}, optimizer, Seed{1}};
  const Tensor<float, 2, Cpu> x(2, 8);
  trainer.step(x, x);
}
