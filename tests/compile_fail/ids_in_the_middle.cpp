// expect: gatefold: this layer reads ids, and those after the first of a Chain read the rows that the one before writes: put it first; see docs/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
const Chain model{Embedding{.vocabulary = 5, .model_dim = 3}, Linear{.model_dim = 3, .output_dim = 5}};
#else
const Chain model{Linear{.model_dim = 3, .output_dim = 5}, Embedding{.vocabulary = 5, .model_dim = 3}};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
