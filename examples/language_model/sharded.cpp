#include "sharded.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>

#include "network.hpp"
#include "on_shard.hpp"
#include "train.hpp"
#if defined(GATEFOLD_EXAMPLES_MPI)
#include <gatefold/mpi.hpp>
#endif

namespace language {

namespace {

#if defined(GATEFOLD_EXAMPLES_MPI)
using World = dist::Mpi;
#else
using World = dist::Alone;
#endif

}  // namespace

void train_on_shards(const Options& o) {
  expect(o.update == "plain" || o.update == "heavy-ball", "options", "shards", "an update that is plain or heavy-ball",
         o.update);
  World world;
  const auto program = [&](auto& shard) {
    Options own = o;  // the threads of this process shared out
    own.threads = std::max(1, o.threads / static_cast<int>(shard.in_this_process()));
    const OnShard place{&shard};
    const training::Role role{
        .alone = false, .reports = shard.index() == 0, .any = [&](bool mine) { return shard.sum(Index(mine)) > 0; }};
    train(own, role, [&](const Options& options, Index vocabulary) -> std::unique_ptr<Model> {
      const auto with = [&]<class RuleT>(const RuleT& rule) {
        return std::make_unique<Network<RuleT, OnShard<std::remove_reference_t<decltype(shard)>>>>(options, vocabulary,
                                                                                                   rule, place);
      };
      if (o.update == "plain") return with(update::Plain{});
      return with(update::HeavyBall{.mu = o.mu, .gamma = o.gamma});
    });
  };
  try {
    dist::run(world, o.shards, program);
  } catch (const std::exception& error) {
    // While the world lives: a launcher ends the others when one has.
    if (world.size() > 1) std::fprintf(stderr, "language_model: rank %d: %s\n", world.rank(), error.what());
    throw;
  }
}

}  // namespace language
