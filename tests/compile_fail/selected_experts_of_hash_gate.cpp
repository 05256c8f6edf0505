// expect: gatefold: select_experts: this gate \(for example a HashGate\) has no tensors, and its choices depend on the number of experts, so it would send items to other experts than before: train a new gate
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
