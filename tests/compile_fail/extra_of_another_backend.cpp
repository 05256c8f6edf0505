// expect: gatefold: the arguments of infer must belong to one model L, one element type T and one backend B
#include <gatefold/gatefold.hpp>

int main() {
  using namespace gatefold;
  const Residual layer{update::HeavyBall{},
                       Mixture{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Linear{.model_dim = 8}}};
#if defined(GATEFOLD_FAIL)
  using B = CpuBf16;
#else
  using B = Cpu;
#endif
  Cpu::Context ctx;
  const auto frozen = freeze(ctx, layer.init<float, Cpu>(ctx, Seed{1}));
  const Tensor<float, 2, Cpu> x(3, 8);
  Tensor<float, 2, Cpu> y(3, 8);
  Carry<decltype(layer), float, Cpu> carry;
  infer(layer, ctx, frozen, x, carry, y, Extra<decltype(layer), float, B>{});
}
