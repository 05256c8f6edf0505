// expect: gatefold: a ThreeStage takes Stages, its epochs and optimizers
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/three_stage.hpp>

using namespace gatefold;

void run(Cpu::Context& ctx, const Tensor<float, 2, Cpu>& x) {
  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.experts = 4, .length = 2}},
                        AttentionExpert{.model_dim = 4, .length = 2}};
#ifdef GATEFOLD_FAIL
  const optim::AdamW how{};
#else
  const Stages how{1, 2, optim::AdamW{}};
#endif
  ThreeStage run{ctx, mixture, Logistic{}, how, Seed{1}};
  run.begin_epoch();
  run.step(x, Tensor<float, 2, Cpu>(x.extent(0), 1));
}
