// expect: gatefold: norm and branch are swapped: PreNorm\{norm, branch\}; see docs/how-to/extending\.md#branch
// expect: gatefold: layer and norm are swapped: PostNorm\{layer, norm\}; see docs/how-to/extending\.md#branch
// expect: gatefold: norm and layer are swapped: NormedPoint\{norm, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: a norm must be an expert or a branch, for example LayerNorm\{\} or RmsNorm\{\}: PreNorm\{norm, branch\}, PostNorm\{layer, norm\}, NormedPoint\{norm, layer\}; see docs/how-to/extending\.md#branch
// expect: gatefold: expected a branch, got an expert: write OneExpert\{expert\} or Mixture\{gate, expert\}; see docs/how-to/extending\.md#branch
// expect: gatefold: expected a branch, got a gate: write Mixture\{gate, expert\}; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const SoftmaxTopK gate{.scores = {.experts = 3}};
  const Linear expert{.model_dim = 2};
  const Mixture branch{gate, expert};
  const Residual layer{update::HeavyBall{}, branch};
#ifndef GATEFOLD_FAIL
  PreNorm{LayerNorm{}, branch}.init<float, Cpu>(ctx, Seed{1});
  PreNorm{LayerNorm{}, OneExpert{expert}}.init<float, Cpu>(ctx, Seed{1});
  PostNorm{layer, LayerNorm{}}.init<float, Cpu>(ctx, Seed{1});
  NormedPoint{LayerNorm{}, layer}.init<float, Cpu>(ctx, Seed{1});
#else
  PreNorm{branch, LayerNorm{}}.init<float, Cpu>(ctx, Seed{1});
  PostNorm{LayerNorm{}, layer}.init<float, Cpu>(ctx, Seed{1});
  NormedPoint{layer, LayerNorm{}}.init<float, Cpu>(ctx, Seed{1});
  PreNorm{update::HeavyBall{}, branch}.init<float, Cpu>(ctx, Seed{1});
  PreNorm{LayerNorm{}, expert}.init<float, Cpu>(ctx, Seed{1});
  PreNorm{LayerNorm{}, gate}.init<float, Cpu>(ctx, Seed{1});
#endif
}
