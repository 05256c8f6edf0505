// expect: gatefold: scores must not have Saved or ExtraGrad: their backward gets x again and computes no adjoint of their Extra; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Kept : LinearScores {
#ifdef GATEFOLD_FAIL
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> z;  // [N, E]
    GATEFOLD_PACK(z)
  };
#endif
  Kept with_model_dim(Index width) const { return {gatefold::with_model_dim(LinearScores(*this), width)}; }
};

int main() {
  Cpu::Context ctx;
  ComposedGate<Kept, Independent, TopK>{}.init<float, Cpu>(ctx, Seed{1});
}
