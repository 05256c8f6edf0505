#include "train.hpp"

namespace fashion {

void train_heavy_ball(const Options& options) { train(options, gatefold::update::HeavyBall{.mu = 0.7, .gamma = 1.0}); }

}  // namespace fashion
