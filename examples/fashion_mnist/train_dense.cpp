#include <gatefold/gatefold.hpp>

#include "train.hpp"

namespace fashion {

void train_dense(const Options& options) {
  Cpu::Context ctx(options.threads);
  train_dense(ctx, options, update::HeavyBall{.mu = 0.7, .gamma = 1.0});
}

}  // namespace fashion
