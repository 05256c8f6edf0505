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
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const std::vector<T> x(6), target(6);
  trainer.step({x.data(), 3, 2}, {target.data(), 3, 2});
}
