// expect: argument #2 does not match parameter
// expect: error: no instance of function template "gatefold::MeanSquaredError::forward" matches the argument list
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
  const Tensor<float, 2, Cuda> target(2, 3);
  const Tensor<float, 2, Place> y(2, 3);
  Tensor<float, 1, Cuda> value(1);
  MeanSquaredError{}.forward<float, Cuda>(ctx, y, target, value);
}
