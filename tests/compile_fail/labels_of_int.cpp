// expect: gatefold: what a Trainer takes are views of its own elements and backend, in memory that has a name: rows x \[N, in_dim\] of float \(of double after Element<double>\{\}\), ids and labels of gatefold::Index \(std::int64_t\), on a device what transfer has copied there; infer writes a y that is not const; see docs/how-to/your_data\.md
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
