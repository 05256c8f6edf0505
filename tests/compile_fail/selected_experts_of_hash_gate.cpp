// expect: gatefold: select_experts: the choice of this gate follows from the number of experts, as that of HashGate, and not from tensors: other experts would get the items, so train a new gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const SoftmaxTopK gate{.scores = {.experts = 3}};
#else
const HashGate gate{.count = 3};
#endif

int main() {
  Cpu::Context ctx;
  const auto params = init_params<float, Cpu>(Mixture{gate, Mlp<Gelu>{8, 16}}, ctx, Seed{1});
  const auto fewer = select_experts(ctx, params, {0, 2});
}
