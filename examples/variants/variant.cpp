// What the program computes, compiled once for each instruction set. The function that leaves has a name of its own in
// each, TRAIN, and hands out plain numbers: a type of the library is another one in each.
#include <gatefold/gatefold.hpp>
using namespace gatefold;

/// The loss after some steps of training.
double TRAIN() {
  Cpu::Context ctx;
  Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},
                       Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                               Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}}},
              2};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}};
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32);
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);
  double loss = 0;
  for (int step = 0; step < 10; ++step) loss = trainer.step(x, target);
  return loss;
}
