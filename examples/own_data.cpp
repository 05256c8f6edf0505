// The program of docs/tutorials/first_training.md: train on std::vector and Eigen matrices, and look at the routing.
#include <Eigen/Core>
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <vector>
using namespace gatefold;

int main() {
  // [snippet model]
  using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Cpu::Context ctx(2);  // two threads
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.01}}};
  const Stack model{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, Mixture{gate, Mlp<Gelu>{8, 16}}}}, 2};
  Trainer trainer{ctx, Chain{model, Linear{.model_dim = 8, .output_dim = 1}}, MeanSquaredError{},
                  optim::Clipped{optim::AdamW{.lr = 3e-3}, 1.0}, Seed{1}};
  // [/snippet]

  // [snippet steps]
  for (int step = 0; step < 1000; ++step) {
    const Index n = 40 + step % 3;  // batches may differ in size
    const RowMatrix x = RowMatrix::Random(n, 8);
    std::vector<float> target(static_cast<std::size_t>(n));
    for (Index i = 0; i < n; ++i) target[static_cast<std::size_t>(i)] = x(i, 0) * x(i, 1);
    const double loss = trainer.step(x, {target.data(), n, 1});  // views of your memory: nothing is copied
    if (step % 250 == 0) std::printf("step %3d  loss %.4f  balance loss %.4f\n", step, loss, trainer.auxiliary());
  }
  // [/snippet]
  // [snippet load]
  for_each_mixture(trainer.saved, [layer = 0](const auto& mixture) mutable {  // the routing of the last step
    std::printf("layer %d:", layer++);
    const auto& offsets = mixture.plan.offsets;  // [E + 1]
    for (Index e = 0; e < mixture.plan.experts(); ++e)
      std::printf(" %lld", static_cast<long long>(offsets(e + 1) - offsets(e)));
    std::printf(" items\n");
  });
  // [/snippet]

  // [snippet use]
  const RowMatrix unseen = RowMatrix::Random(3, 8);
  RowMatrix y(3, 1);
  trainer.infer(unseen, y);  // keeps nothing for backward
  for (Index i = 0; i < 3; ++i)
    std::printf("%+.2f x %+.2f = %+.2f, learned %+.2f\n", static_cast<double>(unseen(i, 0)),
                static_cast<double>(unseen(i, 1)), static_cast<double>(unseen(i, 0) * unseen(i, 1)),
                static_cast<double>(y(i, 0)));
  // [/snippet]
}
