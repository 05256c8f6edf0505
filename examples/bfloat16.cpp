// Trains a model whose experts multiply in bfloat16, then uses it for inference.
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <utility>
using namespace gatefold;

int main() {
  // [snippet bfloat16]
  CpuBf16::Context ctx;  // instead of Cpu::Context: experts multiply bfloat16, all else is float
  Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},
                       Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                               Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}}},
              4};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}};

  Cpu::Context plain;
  const auto x = uniform_tensor<float>(plain, Seed{1}, 1.0, 256, 32);  // tensors of Cpu can be passed as they are
  const auto target = uniform_tensor<float>(plain, Seed{2}, 1.0, 256, 32);
  for (int step = 0; step <= 200; ++step) {
    const double loss = trainer.step(x, target);
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
  }

  // Rounds the weights of the experts once, as every product would do. So y has the same bits, and inference reads half
  // as many bytes of these weights.
  const auto frozen = freeze(ctx, std::move(trainer.params));
  Carry<decltype(model), float, CpuBf16> carry;
  Tensor<float, 2, CpuBf16> y(256, 32);
  model.begin(ctx, frozen.params, x.extent(0), carry);
  infer(model, ctx, frozen, x, carry, y);
  // [/snippet]
  std::printf("y(0, 0) = %.3f, wanted %.3f\n", y(0, 0), target(0, 0));
}
