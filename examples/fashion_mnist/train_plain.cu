#include <gatefold/gatefold.cuh>

#include "train.hpp"

namespace fashion {

void train_plain_cuda(const Options& options) {
  Cuda::Context ctx;
  train(ctx, options, update::Plain{});
}

}  // namespace fashion
