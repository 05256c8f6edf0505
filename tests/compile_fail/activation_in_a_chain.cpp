// expect: gatefold: expected a layer, a branch or an expert, got an activation: make it the template argument of an expert, Mlp<Gelu>\{\.model_dim = 8, \.hidden_dim = 16\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
#ifndef GATEFOLD_FAIL
  const Chain model{Linear{8, 8}, Mlp<Gelu>{8, 16}, Linear{8, 1}};
#else
  const Chain model{Linear{8, 8}, Gelu{}, Linear{8, 1}};
#endif
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
}
