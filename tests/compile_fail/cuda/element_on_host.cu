// expect: gatefold: elements of a device tensor are not reachable from the host; copy it first
#include <gatefold/gatefold.cuh>

using namespace gatefold;

int main() {
  Tensor<float, 2, Cuda> x(2, 3);
#ifdef GATEFOLD_FAIL
  x(0, 0) = 1;
#endif
}
