// expect: gatefold: a Trainer takes views of its own element type and backend, not of temporaries: rows x \[N, in_dim\] of float \(of double after Element<double>\{\}\), ids and labels of gatefold::Index \(std::int64_t\), copied by transfer if they are on a device; y of infer must not be const; see docs/how-to/your_data\.md
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
