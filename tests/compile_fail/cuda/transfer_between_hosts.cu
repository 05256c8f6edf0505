// expect: gatefold: transfer copies between a host backend and the backend of the context
#include <gatefold/gatefold.cuh>

#include "support/naive_backend.hpp"

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Place = Cuda;
#else
using Place = test::Naive;
#endif

int main() {
  Cuda::Context ctx;
  const Tensor<float, 2, test::Naive> from(2, 3);
  Tensor<float, 2, Place> to(2, 3);
  transfer(ctx, from.view(), to.view());
}
