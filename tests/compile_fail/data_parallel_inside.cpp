// expect: gatefold: the optimizer that sums the gradients of several processes must be the outermost one
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
