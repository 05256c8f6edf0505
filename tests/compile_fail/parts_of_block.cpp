// expect: gatefold: attention and layer are swapped: Block\{attention, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: the first part of a Block must be attention, whose trace the second part can read: Block\{Residual\{update::Plain\{\}, Attention\{\.\.\.\}\}, layer\}; join other layers with Chain\{a, b\}; see docs/how-to/extending\.md#branch
// expect: gatefold: the attention of a Block must not have a carry \(momentum\); use update::Plain around it
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Attention attention{.model_dim = 2};
  const Residual layer{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}}};
  const Residual attending{update::Plain{}, attention};
#ifndef GATEFOLD_FAIL
  Block{attending, layer}.init<float, Cpu>(ctx, Seed{1});
  Block{attention, layer}.init<float, Cpu>(ctx, Seed{1});
  Chain{layer, layer}.init<float, Cpu>(ctx, Seed{1});
#else
  Block{layer, attending}.init<float, Cpu>(ctx, Seed{1});
  Block{Linear{.model_dim = 2}, layer}.init<float, Cpu>(ctx, Seed{1});
  Block{Residual{update::HeavyBall{}, attention}, layer}.init<float, Cpu>(ctx, Seed{1});
#endif
}
