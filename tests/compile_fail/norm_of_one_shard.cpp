// expect: gatefold: put Clipped directly inside DataParallel \(only Scheduled may be between them\)
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Optimizer = InGroups<optim::Clipped<optim::Sgd>, optim::Sgd>;
#else
using Optimizer = optim::Clipped<InGroups<optim::Sgd, optim::Sgd>>;
#endif

auto of_shards(dist::Shard<dist::Alone>& shard) { return dist::DataParallel{Optimizer{}, &shard}; }
