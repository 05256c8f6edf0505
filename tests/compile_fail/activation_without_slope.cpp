// expect: gatefold: an activation of an expert that is trained also needs its derivative, static V slope\(V v\); see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Act {
  template <class V>
  static V value(V v) {
    return v;
  }
#ifndef GATEFOLD_FAIL
  template <class V>
  static V slope(V) {
    return V(1);
  }
#endif
};

template <class Expert>
void train(const Expert& expert) {
  Cpu::Context ctx;
  Trainer trainer{ctx, OneExpert{expert}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, expert.in_dim()), target(3, expert.out_dim());
  trainer.step(x, target);
}

int main() {
  train(Mlp<Act>{2, 2});
  train(GatedMlp<Act>{2, 2});
  train(PatchMlp<Act>{.model_dim = 2, .patches = 2, .filters = 2});
}
