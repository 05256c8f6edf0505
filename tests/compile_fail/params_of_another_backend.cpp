// expect: gatefold: the arguments of infer must belong to one model L, one element type T and one backend B
#include <gatefold/gatefold.hpp>

int main() {
  using namespace gatefold;
#if defined(GATEFOLD_FAIL)
  CpuBf16::Context ctx;
#else
  Cpu::Context ctx;
#endif
  const Mixture branch{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Linear{.model_dim = 8}};
  Cpu::Context plain;
  const auto params = branch.init<float, Cpu>(plain, Seed{1});
  const Tensor<float, 2, Cpu> x(3, 8);
  Tensor<float, 2, Cpu> u(3, 8);
  infer(branch, ctx, params, x, u);
}
