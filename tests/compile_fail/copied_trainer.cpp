// expect: gatefold: a run \(Trainer\) is not copied: construct a second one from the same parts, then second\.params = clone\(ctx, first\.params\) and second\.state = clone\(ctx, first\.state\)
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mlp<Gelu>{8, 16}, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
#ifndef GATEFOLD_FAIL
  auto moved = std::move(trainer);
#else
  auto copy = trainer;
#endif
}
