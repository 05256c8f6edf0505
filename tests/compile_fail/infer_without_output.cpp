// expect: gatefold: the arguments of infer must belong to one model L, one element type T and one backend B: B::Context, Params<L, T, B>, items, Carry<L, T, B> \(if L is a layer\), y and Extra<L, T, B>; see docs/reference/functions\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const OneExpert branch{Linear{.model_dim = 2}};
  const auto params = branch.init<float, Cpu>(ctx, Seed{1});
  Tensor<float, 2, Cpu> x(3, 2), u(3, 2);
#ifndef GATEFOLD_FAIL
  infer(branch, ctx, params, x, u);
#else
  infer(branch, ctx, params, x);
#endif
}
