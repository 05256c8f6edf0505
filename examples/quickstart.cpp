// The program of the README.
// [snippet quickstart]
#include <cstdio>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

int main() {
  Cpu::Context ctx;                                                 // threads and scratch memory
  Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},  // update rule
                       Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},  // gate: 2 of 8 experts
                               Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}}},                // experts
              4};                                                                             // layers
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}};

  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32);       // [N, D] random items
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);  // [N, D] random targets to memorise
  for (int step = 0; step <= 200; ++step) {
    const double loss = trainer.step(x, target);
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
  }
}
// [/snippet]
