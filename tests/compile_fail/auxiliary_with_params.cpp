// expect: gatefold: an auxiliary loss is options and what it computes of a GateOutcome: it has no Params, Saved or Extra of its own; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Level : Balance {
#ifdef GATEFOLD_FAIL
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> level;  // [1]
    GATEFOLD_PACK(level)
  };
#endif
};

int main() {
  Cpu::Context ctx;
  WithAuxiliary<SoftmaxTopK, Level>{}.init<float, Cpu>(ctx, Seed{1});
}
