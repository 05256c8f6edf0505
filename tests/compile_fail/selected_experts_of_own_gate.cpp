// expect: gatefold: select_experts: the Params of this gate must declare which extents of their tensors count experts: static constexpr int expert_extents\[\] = \{1, 0\}; in the order of each, -1 for a tensor without such an extent; see docs/reference/optional_members\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// User-defined scores.
struct OwnScores : LinearScores {
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> weight;  // [D, E]
    GATEFOLD_PACK(weight)
#ifndef GATEFOLD_FAIL
    static constexpr int expert_extents[] = {1};
#endif
  };
};

/// Parameters of a mixture, as Mixture has them.
struct OwnMixture {
  using Gate = OwnScores;
  OwnScores::Params<float, Cpu> gate;
  Linear::Params<float, Cpu> expert;
  GATEFOLD_PACK(gate, expert)
};

int main() {
  Cpu::Context ctx;
  const auto fewer = select_experts(ctx, OwnMixture{}, {0, 2});
}
