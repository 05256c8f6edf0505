// expect: gatefold: copy tensors and packs with clone: auto best = clone\(ctx, trainer\.params\)
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  Trainer first{ctx, Mlp<Gelu>{8, 16}, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  Trainer second{ctx, Mlp<Gelu>{8, 16}, MeanSquaredError{}, optim::AdamW{}, Seed{2}};
#ifndef GATEFOLD_FAIL
  second.state = clone(ctx, first.state);
#else
  second.state = first.state;
#endif
}
