// expect: gatefold: an optimizer has step\(ctx, params, grads, state\) const, with both packs Pack& and state State<Pack>&; see docs/extending\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// p ← p − lr · g
struct Descent {
  using IsOptimizer = void;
  double lr = 0.1;
  template <class Pack>
  struct State {
    Index step = 0;
    static void each(auto&&, auto&...) {}
  };
  template <class C, class Pack>
  State<Pack> begin(C&, const Pack&) const {
    return {};
  }
#ifndef GATEFOLD_FAIL
  template <class C, class Pack>
  void step(C&, Pack& params, Pack& grads, State<Pack>&) const {
    for_each_learned([this](const Name&, auto& p, auto& g) { p.data()[0] -= static_cast<float>(lr) * g.data()[0]; },
                     params, grads);
  }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Descent{}, Seed{1}};
}
