// expect: gatefold: the primary gate of a HierarchicalGate must write a SparsePlan \(not SoftMoe\), and the secondary gate must be a ComposedGate with picks in the order of the items \(not ExpertChoice\); see docs/how-to/routers\.md#groups-of-experts
#include <gatefold/gatefold.hpp>

using namespace gatefold;

const SoftmaxTopK groups{.scores = {.experts = 3}};
#ifndef GATEFOLD_FAIL
const HierarchicalGate gate{groups, groups};
#else
const HierarchicalGate gate{groups, SoftmaxExpertChoice{.scores = {.experts = 3}}};
#endif

int main() {
  Cpu::Context ctx;
  const auto params = init_params<float, Cpu>(Mixture{gate, Mlp<Gelu>{8, 16}}, ctx, Seed{1});
}
