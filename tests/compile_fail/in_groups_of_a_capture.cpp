// expect: gatefold: the first argument of InGroups\{belongs, first, rest\} must be a function, or a lambda without captures, that takes the name of a tensor
#include <gatefold/gatefold.hpp>

using namespace gatefold;

void run(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x, [[maybe_unused]] bool which) {
  const optim::AdamW adam{};
#ifdef GATEFOLD_FAIL
  const InGroups groups{[&](const Name&) { return which; }, adam, adam};
#else
  const InGroups groups{[](const Name&) { return true; }, adam, adam};
#endif
  Trainer trainer{ctx, OneExpert{Linear{.model_dim = 2}}, MeanSquaredError{}, groups, Seed{1}};
  trainer.step(x, x);
}
