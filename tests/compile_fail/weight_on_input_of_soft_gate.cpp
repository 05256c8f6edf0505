// expect: gatefold: the gate in a WeightOnInput must write a SparsePlan, because each pick has a weight; the slots of a SoftMoe are means of items; see docs/how-to/extending\.md#gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

void make(Cpu::Context& ctx) {
#ifdef GATEFOLD_FAIL
  const WeightOnInput gate{SoftMoe{.count = 4}};
#else
  const WeightOnInput gate{SoftmaxTopK{.scores = {.experts = 4}}};
#endif
  (void)init_params<float, Cpu>(Mixture{gate, Linear{.model_dim = 2}}, ctx, Seed{1});
}
