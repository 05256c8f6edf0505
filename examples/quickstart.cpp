// The program of the README.
// [snippet quickstart]
#include <cstdio>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

int main() {
  Cpu::Context ctx;                                                 // threads and scratch memory; no hidden globals
  Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},  // how it enters the stream
                       Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},  // who goes where
                               Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}}},                // what is computed
              4};                                                                             // layers
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}};

  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32);       // [N, D] random items, and
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);  // [N, D] something to learn by heart
  for (int step = 0; step <= 200; ++step) {
    const double loss = trainer.step(x, target);
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
  }
}
// [/snippet]
