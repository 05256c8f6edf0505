// One residual mixture layer, forward and backward, with the same code for every backend.
#pragma once

#include <chrono>
#include <gatefold/policies.hpp>
#include <vector>

namespace example {

using namespace gatefold;

/// The result of one backend, copied to the host, and the time it took.
struct Outcome {
  std::vector<float> y, dx;  // [items, dim]
  double milliseconds = 0;   // time of the fastest forward and backward pass, with the copy to the host
};

struct Size {
  Index items, dim, hidden, experts;
};

// [snippet layer]
/// y = x + u(x), the first step of heavy ball. Each item goes to two experts. B is Cpu or Cuda.
template <class B>
Outcome run(typename B::Context& ctx, const Size& size) {
  const Residual layer{update::HeavyBall{.mu = 0.7},
                       Mixture{SoftmaxTopK{.scores = {.experts = size.experts}, .selection = {.k = 2}},
                               Mlp<Gelu>{.model_dim = size.dim, .hidden_dim = size.hidden}}};
  const auto params = layer.template init<float, B>(ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, size.items, size.dim);
  const auto dy = uniform_tensor<float>(ctx, Seed{3}, 1.0, size.items, size.dim);
  Tensor<float, 2, B> y(size.items, size.dim), dx(size.items, size.dim);
  Saved<decltype(layer), float, B> saved;
  Carry<decltype(layer), float, B> carry, dcarry;

  const auto pass = [&] {
    layer.begin(ctx, params, size.items, carry);
    layer.forward(ctx, params, x, carry, y, saved);
    layer.begin(ctx, params, size.items, dcarry);
    set_zero(ctx, grads);
    set_zero(ctx, dx);
    gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads);
  };
  // [/snippet]
  Outcome outcome;
  outcome.y.resize(static_cast<std::size_t>(y.size()));
  outcome.dx.resize(outcome.y.size());
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    pass();
    B::to_host(ctx, y.size(), y.data(), outcome.y.data());
    B::to_host(ctx, dx.size(), dx.data(), outcome.dx.data());
    const double taken = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (repeat == 0 || taken < outcome.milliseconds) outcome.milliseconds = taken;
  }
  return outcome;
}

/// run_on_cpu() is defined in cpu.cpp, which the host compiler compiles. run_on_cuda() is defined in cuda.cu, which
/// nvcc compiles.
Outcome run_on_cpu(const Size& size);
Outcome run_on_cuda(const Size& size);

}  // namespace example
