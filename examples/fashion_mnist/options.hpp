#pragma once

#include <gatefold/core/types.hpp>
#include <string>

namespace fashion {

using gatefold::Index;

/// The options of the command line.
struct Options {
  std::string backend = "cpu", gate = "softmax", update = "heavy-ball";
  Index experts = 8, k = 2, layers = 2, dim = 64, hidden = 128, patch = 7;
  Index epochs = 4, steps = 0, batch = 128;
  double lr = 2e-3, balance = 0.01;
  std::uint64_t seed = 42;
  int threads = 0;
  Index shards = 0;
  std::string data = "/usr/share/datasets/fashion-mnist", json{}, picture{}, save{}, load{};

  Index tokens() const { return (28 / patch) * (28 / patch); }
};

/// Trains, evaluates and reports the default model: gate softmax, update heavy-ball, backend cpu.
void train_default(const Options& options);
// These functions train, evaluate and report other models, or use other backends. A program has the functions for the
// CPU if it is built with FASHION_MNIST_VARIANTS, and the functions for CUDA if it is built with CUDA.
void train_dense(const Options& options);
void train_plain(const Options& options);
void train_heavy_ball_on_shards(const Options& options);
void train_plain_bf16(const Options& options);
void train_heavy_ball_bf16(const Options& options);
void train_plain_cuda(const Options& options);
void train_heavy_ball_cuda(const Options& options);

}  // namespace fashion
