#include <gatefold/gatefold.cuh>

#include "train.hpp"

namespace fashion {

void train_heavy_ball_cuda(const Options& options) {
  Cuda::Context ctx;
  train(ctx, options, update::HeavyBall{.mu = 0.7, .gamma = 1.0});
}

}  // namespace fashion
