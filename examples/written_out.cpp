// The training loop of Trainer, written out. Context, options, parameters, saved state and carry are separate
// arguments.
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <utility>
using namespace gatefold;

int main() {
  // [snippet written-out]
  Cpu::Context ctx;                                // threads and scratch memory
  const Stack model{Residual{update::HeavyBall{},  // options
                             Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}}, Mlp<Gelu>{32, 64}}},
                    4};
  auto params = model.init<float, Cpu>(ctx, Seed{42});  // learned
  auto grads = zeros_like(ctx, params);
  const optim::AdamW optimizer{.lr = 3e-3};
  auto state = optimizer.begin(ctx, params);
  Saved<decltype(model), float, Cpu> saved;          // kept for backward
  Carry<decltype(model), float, Cpu> carry, dcarry;  // carried through depth

  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32);
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);
  Tensor<float, 2, Cpu> y(256, 32), dy(256, 32), dx(256, 32);
  Tensor<float, 1, Cpu> loss(1);
  for (int step = 0; step <= 200; ++step) {
    model.begin(ctx, params, x.extent(0), carry);
    model.forward(ctx, params, x, carry, y, saved);
    MeanSquaredError{}.forward<float, Cpu>(ctx, y, target, loss);
    MeanSquaredError{}.backward<float, Cpu>(ctx, y, target, dy);

    model.begin(ctx, params, x.extent(0), dcarry);  // zeros, because the carry after the last layer is not read
    set_zero(ctx, grads);                           // backward adds to the gradients; the caller zeroes them
    set_zero(ctx, dx);
    backward(model, ctx, params, x, saved, dy, dcarry, dx, grads);
    optimizer.step(ctx, params, grads, state);
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, static_cast<double>(loss(0)));
  }
  // [/snippet]
}
