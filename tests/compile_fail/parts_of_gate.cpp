// expect: gatefold: the parts of this gate are in another order: ComposedGate<scores, mixing, selection, auxiliary losses\.\.\.>, ComposedGate<LinearScores, Independent, TopK, Balance> say; see docs/how-to/extending_parts\.md#parts-of-a-gate
// expect: gatefold: a ComposedGate needs scores, mixing, selection and optional auxiliary losses, for example ComposedGate<LinearScores, Independent, TopK>; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

template <class... Parts>
void begin() {
  Cpu::Context ctx;
  ComposedGate<Parts...>{}.template init<float, Cpu>(ctx, Seed{1});
}

int main() {
  Cpu::Context ctx;
  const LinearScores scores{.experts = 2};
  const Linear expert{.model_dim = 2};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
#ifndef GATEFOLD_FAIL
  begin<LinearScores, Independent, TopK>();
  begin<LinearScores, Independent, TopK, Balance>();
  const ComposedGate gate{scores, Independent{}, TopK{}};
  const ComposedGate with_loss{scores, Independent{}, TopK{}, std::tuple{Balance{}}};
  with_loss.init<float, Cpu>(ctx, Seed{1});
#else
  begin<TopK, Independent, LinearScores>();
  begin<LinearScores, TopK, Independent>();
  begin<Independent, LinearScores, TopK>();
  begin<LinearScores, Independent, Balance>();
  begin<LinearScores, Balance, Independent, TopK>();
  begin<LinearScores, Independent, TopK, TopK>();
  begin<LinearScores, TopK>();
  const ComposedGate two{scores, TopK{}};
  const ComposedGate gate{scores, TopK{}, Independent{}};
#endif
  Trainer trainer{ctx, Mixture{gate, expert}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  trainer.step(x, target);
}
