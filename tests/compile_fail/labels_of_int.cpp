// expect: gatefold: a View does not convert elements\. Labels and ids are gatefold::Index \(std::int64_t\); a Trainer, and what init<float, Cpu> made, take float, and double after Element<double>\{\} or init<double, Cpu>; see docs/extending\.md#what-all-policies-share
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Label = Index;
#else
using Label = int;
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, CrossEntropy{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2);
  const std::vector<Label> labels{0, 1, 1};
  trainer.step(x, labels);
}
