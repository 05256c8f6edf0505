// expect: gatefold: init takes the element type and the backend as template arguments: model\.init<float, Cpu>\(ctx, Seed\{1\}\); see docs/reference/functions\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
  const Stack model{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, mixture}}, 2};
  const Chain chain{model, Linear{.model_dim = 2}};
#ifndef GATEFOLD_FAIL
  const auto p = model.init<float, Cpu>(ctx, Seed{1});
  const auto q = chain.init<double, Cpu>(ctx, Seed{1});
  const Seed seed{1};
  const auto r = mixture.init<float, Cpu>(ctx, seed);
#else
  const auto p = model.init<float>(ctx, Seed{1});
  const auto q = chain.init(ctx, Seed{1});
  const auto r = mixture.init<double>(ctx, Seed{1});
#endif
}
