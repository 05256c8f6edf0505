// expect: gatefold: the arguments of infer must belong to one model
#include <gatefold/gatefold.hpp>

int main() {
  using namespace gatefold;
  Cpu::Context ctx;
  const Mixture branch{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Linear{.model_dim = 8}};
#if defined(GATEFOLD_FAIL)
  const Mixture other{SoftmaxTopK{.scores = {.model_dim = 8, .experts = 4}}, Mlp<Gelu>{8, 8}};
#else
  const auto& other = branch;
#endif
  const auto params = init_params<float, Cpu>(other, ctx, Seed{1});
  const Tensor<float, 2, Cpu> x(3, 8);
  Tensor<float, 2, Cpu> u(3, 8);
  infer(branch, ctx, params, x, u);
}
