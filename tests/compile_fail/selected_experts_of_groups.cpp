// expect: gatefold: select_experts: the groups of a HierarchicalGate must keep the same number of experts, so its experts cannot be selected one by one: train a new gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

const SoftmaxTopK groups{.scores = {.experts = 3}};
#ifndef GATEFOLD_FAIL
const SoftmaxTopK gate = groups;
#else
const HierarchicalGate gate{groups, groups};
#endif

int main() {
  Cpu::Context ctx;
  const auto params = init_params<float, Cpu>(Mixture{gate, Mlp<Gelu>{8, 16}}, ctx, Seed{1});
  const auto fewer = select_experts(ctx, params, {0, 2});
}
