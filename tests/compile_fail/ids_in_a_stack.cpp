// expect: gatefold: this part reads ids, as the first layer of a Chain may and no other: the layers after it read rows, and so does what a Stack, a PerToken and a Residual are made of; see docs/how-to/extending\.md#branch
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
