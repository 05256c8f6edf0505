// expect: gatefold: a View does not convert elements\. Labels and ids are gatefold::Index \(std::int64_t\); a Trainer, and what init<float, Cpu> made, take float, and double after Element<double>\{\} or init<double, Cpu>; see docs/extending\.md#what-all-policies-share
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using T = float;
#else
using T = double;
#endif

int main() {
  Cpu::Context ctx;
  const Residual layer{update::Plain{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Linear{.model_dim = 2}}};
  const auto params = layer.init<float, Cpu>(ctx, Seed{1});
  const Tensor<T, 2, Cpu> x(3, 2);
  Tensor<float, 2, Cpu> y(3, 2);
  Carry<decltype(layer), float, Cpu> carry;
  Saved<decltype(layer), float, Cpu> saved;
  layer.forward(ctx, params, x, carry, y, saved);
}
