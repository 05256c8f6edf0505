// expect: this auxiliary loss does not fit the selection: Load needs noise
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Gate = WithAuxiliary<SoftmaxTopK, Load>;
#else
using Gate = SoftmaxNoisyTopK;
#endif

int main() {
  Cpu::Context ctx;
  (void)init_params<float, Cpu>(Gate{.scores = {.model_dim = 4, .experts = 2}}, ctx, Seed{1});
}
