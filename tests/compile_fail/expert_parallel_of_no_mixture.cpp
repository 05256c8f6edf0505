// expect: gatefold: ExpertParallel takes a Mixture and the address of a shard: ExpertParallel\{mixture, &shard\}; put wrappers of the mixture outside it: WithShared\{ExpertParallel\{\.\.\.\}, \.\.\.\}; see docs/how-to/distributed\.md
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void on_shard(dist::Shard<dist::Alone>& shard) {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}}, Linear{.model_dim = 2}};
#ifdef GATEFOLD_FAIL
  const dist::ExpertParallel branch{WithShared{mixture, Linear{.model_dim = 2}}, &shard};
#else
  const WithShared branch{dist::ExpertParallel{mixture, &shard}, Linear{.model_dim = 2}};
#endif
  (void)branch;
}
