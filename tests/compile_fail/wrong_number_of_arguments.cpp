// expect: gatefold: begin of a layer takes \(ctx, params, items, carry\); items is the number of items; see docs/reference/functions\.md
// expect: gatefold: forward of a layer takes \(ctx, params, x, carry, y, saved\), then extra if the layer has extra inputs; call begin first: Carry<L, T, B> carry; layer\.begin\(ctx, params, items, carry\); see docs/reference/functions\.md
// expect: gatefold: infer of a layer takes \(ctx, params, x, carry, y\), then extra if the layer has extra inputs; call begin first: Carry<L, T, B> carry; layer\.begin\(ctx, params, items, carry\); see docs/reference/functions\.md
// expect: gatefold: the member backward of a layer also takes extra and dextra; without the adjoint of extra inputs call the free function backward\(layer, ctx, params, x, saved, dy, dcarry, dx, grads\), with extra last if the layer has extra inputs; see docs/reference/functions\.md
// expect: gatefold: forward of a branch takes \(ctx, params, x, u, saved\), then extra if the branch has extra inputs, then step if there is one; see docs/reference/functions\.md
// expect: gatefold: the member backward of a branch also takes extra and dextra; without the adjoint of extra inputs call the free function backward\(branch, ctx, params, x, saved, du, dx, grads\), with extra last if the branch has extra inputs; see docs/reference/functions\.md
// expect: gatefold: backward of a layer also takes the adjoint of its carry: backward\(layer, ctx, params, x, saved, dy, dcarry, dx, grads\); see docs/reference/functions\.md
// expect: gatefold: wrong number of arguments: call backward\(layer, ctx, params, x, saved, dy, dcarry, dx, grads\) for a layer or backward\(branch, ctx, params, x, saved, du, dx, grads\) for a branch, with extra inputs as last argument if there are any; see docs/reference/functions\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

template <class L>
struct Pass {
  Cpu::Context ctx;
  Params<L, float, Cpu> params, grads;
  Saved<L, float, Cpu> saved;
  Carry<L, float, Cpu> carry;
  Extra<L, float, Cpu> extra;
  ExtraGrad<L, float, Cpu> dextra;
  Tensor<float, 2, Cpu> x, y, dx, dy;
};

int main() {
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
  const Stack layer{Residual{update::HeavyBall{}, branch}, 2};
  Pass<std::remove_const_t<decltype(layer)>> l;
  Pass<std::remove_const_t<decltype(branch)>> b;
#ifndef GATEFOLD_FAIL
  layer.begin(l.ctx, l.params, 3, l.carry);
  layer.forward(l.ctx, l.params, l.x, l.carry, l.y, l.saved);
  layer.forward(l.ctx, l.params, l.x, l.carry, l.y, l.saved, l.extra);
  layer.infer(l.ctx, l.params, l.x, l.carry, l.y);
  layer.backward(l.ctx, l.params, l.x, l.saved, l.dy, l.carry, l.dx, l.grads, l.extra, l.dextra);
  backward(layer, l.ctx, l.params, l.x, l.saved, l.dy, l.carry, l.dx, l.grads);
  backward(layer, l.ctx, l.params, l.x, l.saved, l.dy, l.carry, l.dx, l.grads, l.extra);
  branch.forward(b.ctx, b.params, b.x, b.y, b.saved);
  branch.forward(b.ctx, b.params, b.x, b.y, b.saved, {});
  branch.backward(b.ctx, b.params, b.x, b.saved, b.dy, b.dx, b.grads, b.extra, b.dextra);
  backward(branch, b.ctx, b.params, b.x, b.saved, b.dy, b.dx, b.grads);
#else
  layer.begin(l.ctx, 3, l.carry);
  layer.forward(l.ctx, l.params, l.x, l.y, l.saved);
  layer.infer(l.ctx, l.params, l.x, l.y);
  layer.backward(l.ctx, l.params, l.x, l.saved, l.dy, l.carry, l.dx, l.grads);
  layer.backward(l.ctx, l.params, l.x, l.saved, l.dy, l.carry, l.dx, l.grads, l.extra);
  branch.forward(b.ctx, b.params, b.x, b.y);
  branch.backward(b.ctx, b.params, b.x, b.saved, b.dy, b.dx, b.grads);
  backward(layer, l.ctx, l.params, l.x, l.saved, l.dy, l.dx, l.grads);
  backward(layer, l.ctx, l.params, l.x, l.saved, l.dy);
#endif
}
