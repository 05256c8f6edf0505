// expect: gatefold: copy tensors and packs with clone: auto best = clone\(ctx, trainer\.params\)
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  Tensor<float, 2, Cpu> a(2, 3), b = std::move(a);
#ifndef GATEFOLD_FAIL
  Tensor<float, 2, Cpu> c = clone(ctx, b);
#else
  Tensor<float, 2, Cpu> c = b;
#endif
}
