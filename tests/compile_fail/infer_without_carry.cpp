// expect: gatefold: infer of a layer also takes a carry: Carry<L, T, B> carry; layer\.begin\(ctx, params, items, carry\); infer\(layer, ctx, params, x, carry, y\); see docs/how-to/serving\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Residual layer{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}}};
  const auto params = layer.init<float, Cpu>(ctx, Seed{1});
  const Tensor<float, 2, Cpu> x(3, 2);
  Tensor<float, 2, Cpu> y(3, 2);
#ifndef GATEFOLD_FAIL
  Carry<decltype(layer), float, Cpu> carry;
  layer.begin(ctx, params, x.extent(0), carry);
  infer(layer, ctx, params, x, carry, y);
#else
  infer(layer, ctx, params, x, y);
#endif
}
