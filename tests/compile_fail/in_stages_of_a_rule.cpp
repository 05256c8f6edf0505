// expect: gatefold: the first argument of this wrapper must be an optimizer \(gatefold::optim\)
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/in_stages.hpp>

using namespace gatefold;

void run(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x) {
#ifdef GATEFOLD_FAIL
  const InStages stages{1, 2, update::HeavyBall{}};
#else
  const InStages stages{1, 2};
#endif
  Trainer trainer{ctx, OneExpert{AttentionExpert{.model_dim = 4, .length = 2}}, Logistic{}, stages, Seed{1}};
  trainer.step(x, Tensor<float, 2, Cpu>(x.extent(0), 1));
}
