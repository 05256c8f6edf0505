#include <gatefold/gatefold.hpp>

#include "train.hpp"

namespace fashion {

void train_heavy_ball(const Options& options) {
  Cpu::Context ctx(options.threads);
  train(ctx, options, update::HeavyBall{.mu = 0.7, .gamma = 1.0});
}

}  // namespace fashion
