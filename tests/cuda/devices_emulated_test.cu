// Contexts on several devices. All memory of a context is on the device of the context, even if another one is current.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/memory.hpp"
#include "gatefold/gatefold.cuh"

using namespace gatefold;

namespace {

constexpr Index dim = 8, items = 24;

const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 12}};
const Stack model{Chain{Residual{update::HeavyBall{}, mixture},
                        Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = dim, .heads = 2}}}},
                  2};

std::size_t bytes_of(int device) { return cuda_emulator::Memory::device().live_bytes_of(device); }
int current() {
  int device = -1;
  REQUIRE(cudaGetDevice(&device) == cudaSuccess);
  return device;
}
void make_current(int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); }

/// A training run on one context, with batches that the context makes.
struct Run {
  explicit Run(Cuda::Context& of, std::uint64_t seed)
      : ctx(of),
        x(uniform_tensor<float>(ctx, Seed{seed}, 1, items, dim)),
        target(uniform_tensor<float>(ctx, Seed{seed + 1}, 1, items, dim)),
        trainer(ctx, model, MeanSquaredError{}, optim::AdamW{}, Seed{seed}) {}
  double step() { return trainer.step(x, target); }
  std::vector<float> parameters() {
    std::vector<float> all;
    for_each_tensor(
        [&](const Name&, const auto& t) {
          const auto part = metric::to_vector(ctx, t.view());
          all.insert(all.end(), part.begin(), part.end());
        },
        trainer.params);
    return all;
  }

  Cuda::Context& ctx;
  Tensor<float, 2, Cuda> x, target;
  Trainer<float, Cuda::Context, decltype(model), MeanSquaredError, optim::AdamW> trainer;
};

/// Returns the parameters after some steps on a machine with one device.
std::vector<float> alone(std::uint64_t seed, int steps) {
  Cuda::Context ctx;
  Run run(ctx, seed);
  for (int i = 0; i < steps; ++i) run.step();
  return run.parameters();
}

}  // namespace

TEST_CASE("Context: trains on its device while another one is current") {
  const std::vector<float> expected = alone(1, 2);
  cuda_emulator::options().devices = 2;
  make_current(1);
  Cuda::Context ctx;
  make_current(0);
  CHECK(ctx.device() == 1);
  Run run(ctx, 1);
  run.step();
  run.step();
  CHECK(run.parameters() == expected);
  auto y = [&] {
    const auto here = ctx.here();
    CHECK(current() == 1);
    return Tensor<float, 2, Cuda>(items, dim);
  }();
  run.trainer.infer(run.x, y);
  CHECK(std::isfinite(run.trainer.evaluate(run.x, run.target)));
  CHECK(bytes_of(0) == 0);
  CHECK(bytes_of(1) > 0);
  CHECK(current() == 0);
}

TEST_CASE("Context: two devices alternate step by step in one thread") {
  const std::vector<float> expected[] = {alone(1, 3), alone(7, 3)};
  cuda_emulator::options().devices = 2;
  Cuda::Context first;
  make_current(1);
  Cuda::Context second;
  Run run[] = {Run(first, 1), Run(second, 7)};
  for (int i = 0; i < 3; ++i) {
    make_current(i % 2);
    for (Run& each : run) each.step();
    CHECK(current() == i % 2);
  }
  CHECK(bytes_of(0) == bytes_of(1));
  for (int i : {0, 1}) CHECK(run[i].parameters() == expected[i]);
}

TEST_CASE("layers: direct calls allocate on the device of the stream") {
  cuda_emulator::options().devices = 2;
  make_current(1);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  make_current(0);
  {
    Cuda::Context ctx(stream, {.blas_experts = true});
    CHECK(ctx.device() == 1);
    const auto params = model.init<float, Cuda>(ctx, Seed{1});
    auto grads = zeros_like(ctx, params);
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
    auto y = zeros_like(ctx, x), dx = zeros_like(ctx, x);
    Saved<decltype(model), float, Cuda> saved;
    Carry<decltype(model), float, Cuda> carry;
    model.begin(ctx, params, items, carry);
    model.forward(ctx, params, x, carry, y, saved);
    backward(model, ctx, params, x, saved, y, carry, dx, grads);
    ctx.synchronize();
    CHECK(bytes_of(0) == 0);
  }
  CHECK(current() == 0);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}
