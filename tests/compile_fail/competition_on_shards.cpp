// expect: gatefold: on shards the router loss of a Competition would be a mean over the items of one shard: train a Competition in one process; see docs/how-to/distributed\.md#gates-on-shards
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void on_shard(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}}, Linear{.model_dim = 2}};
#ifdef GATEFOLD_FAIL
  const Stack model{Residual{update::Plain{}, Competition{mixture}}, 2};
#else
  const Stack model{Residual{update::Plain{}, mixture}, 2};
#endif
  Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{}, &shard},
                  Seed{1}};
}
