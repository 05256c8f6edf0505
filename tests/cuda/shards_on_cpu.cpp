#include "gatefold/gatefold.hpp"
#include "support/shard_run.hpp"

namespace gatefold::test {

ShardRun shard_run_on_cpu(Index shards) {
  dist::Alone world;
  return run_on_shards<Cpu>(
      world, shards, [](Index) {}, false);
}

}  // namespace gatefold::test
