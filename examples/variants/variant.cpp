// The computation of the program, compiled once for each instruction set. The exported function has a different name in
// each variant (the macro TRAIN) and returns a plain number, because the types of the library differ between variants.
#include <gatefold/gatefold.hpp>
using namespace gatefold;

/// Returns the loss after training a model for some steps.
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
