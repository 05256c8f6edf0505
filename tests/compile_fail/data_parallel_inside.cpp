// expect: gatefold: what adds up the gradients of several processes is the outermost optimizer
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

auto of_shards(dist::Shard<dist::Alone>& shard) {
  const optim::WarmupCosine rate{.warmup = 1, .total = 9};
#ifdef GATEFOLD_FAIL
  return optim::Scheduled{dist::DataParallel{optim::AdamW{}, &shard}, rate};
#else
  return dist::DataParallel{optim::Scheduled{optim::AdamW{}, rate}, &shard};
#endif
}
