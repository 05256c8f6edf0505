// expect: gatefold: freeze needs parameters and a context of the same backend, for example Params<L, float, Cpu> and a Cpu::Context
#include <gatefold/gatefold.hpp>
#include <utility>

int main() {
  using namespace gatefold;
#if defined(GATEFOLD_FAIL)
  CpuBf16::Context ctx;
#else
  Cpu::Context ctx;
#endif
  Cpu::Context plain;
  const auto frozen = freeze(ctx, Linear{.model_dim = 4}.init<float, Cpu>(plain, 2, Seed{1}));
}
