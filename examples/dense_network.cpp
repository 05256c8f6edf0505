// The program of docs/how-to/your_data.md#a-dense-network-of-any-widths: trains a network without experts.
#include <Eigen/Core>
#include <cstdio>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

int main() {
  using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Cpu::Context ctx(2);
  // [snippet dense]
  Trainer trainer{ctx, Chain{Linear{2, 64}, Gelu{}, Linear{64, 32}, Relu{}, Linear{32, 1}}, MeanSquaredError{},
                  optim::AdamW{.lr = 3e-3}, Seed{1}};
  // [/snippet]
  double first = 0, last = 0;
  for (int step = 0; step < 500; ++step) {
    const RowMatrix x = RowMatrix::Random(64, 2), target = x.col(0).cwiseProduct(x.col(1));
    last = trainer.step(x, target);
    if (step == 0) first = last;
    if (step % 100 == 0) std::printf("step %3d  loss %.5f\n", step, last);
  }
  std::printf("last      loss %.5f\n", last);
  return last < first / 20 ? 0 : 1;
}
