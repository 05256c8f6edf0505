// expect: gatefold: expected a layer, a branch or an expert, got an activation: make it a part of a Chain, Chain\{Linear\{8, 32\}, Gelu\{\}, Linear\{32, 4\}\}, or the template argument of an expert, Mlp<Gelu>\{8, 16\}; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
#ifndef GATEFOLD_FAIL
  const Stack model{Chain{Linear{8, 8}, Gelu{}, Linear{8, 8}}, 2};
#else
  const Stack model{Gelu{}, 2};
#endif
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
}
