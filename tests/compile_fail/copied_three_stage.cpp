// expect: gatefold: a run \(Trainer\) is not copied: construct a second one from the same parts
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/three_stage.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.experts = 2}}, AttentionExpert{.model_dim = 2, .length = 3}};
  ThreeStage run{ctx, mixture, Logistic{}, Stages{1, 2}, Seed{1}};
#ifndef GATEFOLD_FAIL
  auto moved = std::move(run);
#else
  auto copy = run;
#endif
}
