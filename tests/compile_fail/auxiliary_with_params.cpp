// expect: gatefold: an auxiliary loss reads only its options and a GateOutcome: it must not have Params, Saved or Extra; see docs/how-to/extending_parts\.md#parts-of-a-gate
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
