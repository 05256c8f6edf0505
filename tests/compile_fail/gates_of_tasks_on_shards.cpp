// expect: gatefold: on shards the gates of this MultiGate would read only the items of their shard, but auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: use gates without them; see docs/how-to/distributed\.md#gates-on-shards
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void on_shard(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
#ifdef GATEFOLD_FAIL
  const WithAuxiliary<SoftmaxTopK, Balance> gate{.scores = {.experts = 4}};
#else
  const SoftmaxTopK gate{.scores = {.experts = 4}};
#endif
  const Stack model{Residual{update::Plain{}, MultiGate{gate, Linear{.model_dim = 2}}}, 2};
  Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{}, &shard},
                  Seed{1}};
}
