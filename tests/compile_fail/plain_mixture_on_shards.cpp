// expect: gatefold: on shards the gate of this Mixture would read only the items of its shard, but auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: use ExpertParallel\{mixture, &shard\}; see docs/how-to/distributed\.md#gates-on-shards
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void on_shard(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
  const Mixture mixture{WithAuxiliary<SoftmaxTopK, Balance>{.scores = {.experts = 4}}, Linear{.model_dim = 2}};
#ifdef GATEFOLD_FAIL
  const Stack model{Residual{update::Plain{}, mixture}, 2};
#else
  const Stack model{Residual{update::Plain{}, dist::ExpertParallel{mixture, &shard}}, 2};
#endif
  Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{}, &shard},
                  Seed{1}};
}
