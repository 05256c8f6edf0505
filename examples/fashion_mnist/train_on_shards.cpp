#include <gatefold/gatefold.hpp>

#include "../training/in_world.hpp"
#include "../training/on_shard.hpp"
#include "train.hpp"

namespace fashion {

void train_heavy_ball_on_shards(const Options& options) {
  training::in_world("fashion_mnist", options.shards, [&](auto& shard) {
    Cpu::Context ctx(training::threads_of_shard(shard, options.threads));
    train(ctx, options, update::HeavyBall{.mu = 0.7, .gamma = 1.0}, training::OnShard{&shard});
  });
}

}  // namespace fashion
