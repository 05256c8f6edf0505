// expect: gatefold: the host cannot read elements of a device tensor; copy them to a host tensor with transfer\(ctx, from, to\)
#include <gatefold/gatefold.cuh>

using namespace gatefold;

int main() {
  Tensor<float, 2, Cuda> x(2, 3);
#ifdef GATEFOLD_FAIL
  x(0, 0) = 1;
#endif
}
