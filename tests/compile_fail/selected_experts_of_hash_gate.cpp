// expect: gatefold: select_experts: the choices of this gate \(for example a HashGate\) depend on the number of experts, not on tensors, so items would be sent to other experts: train a new gate
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
