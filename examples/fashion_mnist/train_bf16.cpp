#include <gatefold/gatefold.hpp>

#include "train.hpp"

namespace fashion {

void train_plain_bf16(const Options& options) {
  CpuBf16::Context ctx(options.threads);
  train(ctx, options, update::Plain{});
}
void train_heavy_ball_bf16(const Options& options) {
  CpuBf16::Context ctx(options.threads);
  train(ctx, options, update::HeavyBall{.mu = 0.7, .gamma = 1.0});
}

}  // namespace fashion
