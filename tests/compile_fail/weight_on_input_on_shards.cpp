// expect: gatefold: in an ExpertParallel, a WeightOnInput routes only the items of its shard, but auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: use a gate without them; see docs/how-to/distributed\.md#gates-on-shards
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void on_shard(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
#ifdef GATEFOLD_FAIL
  using Gate = WithAuxiliary<SoftmaxTopK, Balance>;
#else
  using Gate = SoftmaxTopK;
#endif
  const Mixture mixture{WeightOnInput{Gate{.scores = {.experts = 4}}}, Linear{.model_dim = 2}};
  (void)init_params<float, Cpu>(dist::ExpertParallel{mixture, &shard}, ctx, Seed{1});
}
