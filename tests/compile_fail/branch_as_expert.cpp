// expect: gatefold: expected an expert, for example Linear or Mlp<Gelu>, got a branch or a layer: Mixture\{gate, expert\}, OneExpert\{expert\} and WithShared\{branch, expert\} take an expert; see docs/how-to/extending\.md#expert
// expect: gatefold: branch and shared expert are swapped: WithShared\{branch, expert\}; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxTopK gate{.scores = {.experts = 3}};
  const Linear expert{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const Residual layer{update::HeavyBall{}, Mixture{gate, expert}};
  const WithShared shared{Mixture{gate, expert}, expert};
#else
  const Residual layer{update::HeavyBall{}, Mixture{gate, OneExpert{expert}}};
  const WithShared shared{expert, Mixture{gate, expert}};
#endif
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  shared.init<float, Cpu>(ctx, Seed{1});
}
