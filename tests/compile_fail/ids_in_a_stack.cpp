// expect: gatefold: this part reads ids, which only the first layer of a Chain may do: the other layers of a Chain and the parts of a Stack, a PerToken and a Residual read rows; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const Chain model{Embedding{.vocabulary = 3, .model_dim = 3}, Stack{Linear{.model_dim = 3}, 2}};
#else
const Stack model{Embedding{.vocabulary = 3, .model_dim = 3}, 2};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
