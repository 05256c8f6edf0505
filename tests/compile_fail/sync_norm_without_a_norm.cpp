// expect: gatefold: SyncNorm takes a rule or optimizer with a norm over a batch
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Rule = update::HeavyBall;
#else
using Rule = update::SharpnessAware;
#endif

auto of_shards(dist::Shard<dist::Alone>& shard) { return dist::SyncNorm{Rule{}, &shard}; }
