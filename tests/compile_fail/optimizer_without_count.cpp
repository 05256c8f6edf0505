// expect: gatefold: an optimizer has template <class Pack> struct State, a pack with a member Index step; see docs/extending\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// p ← p − lr · g
struct Descent {
  using IsOptimizer = void;
  double lr = 0.1;
  template <class Pack>
  struct State {
#ifndef GATEFOLD_FAIL
    Index step = 0;
#endif
    static void each(auto&&, auto&...) {}
  };
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const {
    return {};
  }
  template <class C, class Pack>
  void step(C&, Pack& params, Pack& grads, State<Pack>&) const {
    for_each_learned([this](const Name&, auto& p, auto& g) { p.data()[0] -= static_cast<float>(lr) * g.data()[0]; },
                     params, grads);
  }
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Descent{}, Seed{1}};
}
