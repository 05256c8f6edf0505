// expect: gatefold: the arguments of infer must belong to one model L, one element type T and one backend B
#include <gatefold/gatefold.hpp>

int main() {
  using namespace gatefold;
  const Residual layer{update::HeavyBall{},
                       Mixture{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Linear{.model_dim = 8}}};
#if defined(GATEFOLD_FAIL)
  using B = Cpu;
#else
  using B = CpuBf16;
#endif
  CpuBf16::Context ctx;
  const auto params = layer.init<float, CpuBf16>(ctx, Seed{1});
  const Tensor<float, 2, CpuBf16> x(3, 8);
  Tensor<float, 2, CpuBf16> y(3, 8);
  Carry<decltype(layer), float, B> carry;
  infer(layer, ctx, params, x, carry, y);
}
