// The layer on a CUDA device.
#include <gatefold/gatefold.cuh>

#include "layer.hpp"

// [snippet cuda]
example::Outcome example::run_on_cuda(const Size& size) {
  Cuda::Context ctx;
  return run<Cuda>(ctx, size);
}
// [/snippet]
