// expect: gatefold: this is no auxiliary loss of a gate, Balance or ZLoss say, which needs forward<T, B>\(ctx, a, value\) const of a GateOutcome a; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: an auxiliary loss needs backward<T, B>\(ctx, a, d\) const, which adds to what d, a GateOutcomeGrad, has; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: WithAuxiliary takes a ComposedGate of scores, mixing and selection, and at least one auxiliary loss: WithAuxiliary<SoftmaxTopK, Balance>; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Forward {
  template <class T, class B>
  void forward(typename B::Context&, const GateOutcome<T, B>&, Out<T, 1, B>) const {}
};
struct Both : Forward {
  template <class T, class B>
  void backward(typename B::Context&, const GateOutcome<T, B>&, const GateOutcomeGrad<T, B>&) const {}
};

template <class Gate>
void train() {
  Cpu::Context ctx;
  const Mixture branch{with_experts(Gate{}, 2), Linear{.model_dim = 2}};
  Trainer trainer{ctx, branch, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}

int main() {
#ifndef GATEFOLD_FAIL
  train<WithAuxiliary<SoftmaxTopK, Both>>();
#else
  train<WithAuxiliary<SoftmaxTopK, MeanSquaredError>>();
  train<WithAuxiliary<SoftmaxTopK, Balance, Gelu>>();
  train<WithAuxiliary<SoftmaxTopK, Forward>>();
  train<WithAuxiliary<SoftMoe, Balance>>();
  const WithAuxiliary<Balance, SoftmaxTopK> swapped{};
  const WithAuxiliary<SoftmaxTopK> none{};
#endif
}
