// expect: gatefold: a Trainer needs an optimizer \(gatefold::optim\) that steps parameters; update rules \(gatefold::update\) belong into a Residual, and an optimizer of your own says using IsOptimizer = void; see docs/extending\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// p ← p − lr · g
struct Descent {
#ifndef GATEFOLD_FAIL
  using IsOptimizer = void;
#endif
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
