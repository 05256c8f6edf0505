// Trains a small stack on a GPU with data from the host. Then captures inference with bfloat16 weights in a CUDA graph,
// and launches the graph.
//
//   cuda_training [steps]
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <gatefold/gatefold.cuh>

using namespace gatefold;

namespace {

constexpr Index kItems = 64, kDim = 8;

void expect_success(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status));
}

void run(int steps) {
  std::vector<float> inputs(kItems * kDim), targets(kItems), outputs(kItems), rounded(kItems);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = std::sin(1.7f * static_cast<float>(i));
  for (std::size_t n = 0; n < targets.size(); ++n) targets[n] = inputs[n * kDim] * inputs[n * kDim + 1];

  // [snippet train]
  Cuda::Context ctx;
  Tensor<float, 2, Cuda> x(kItems, kDim), target(kItems, 1), y(kItems, 1);
  transfer(ctx, HostView<const float, 2>(inputs.data(), kItems, kDim), x.view());  // finished on return
  transfer(ctx, HostView<const float, 2>(targets.data(), kItems, 1), target.view());

  const Stack stack{
      Residual{update::HeavyBall{.mu = 0.7}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                     Mlp<Gelu>{.model_dim = kDim, .hidden_dim = 16}}},
      2};
  const Chain model{stack, Linear{.model_dim = kDim, .output_dim = 1}};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{1}};
  for (int step = 0; step < steps; ++step) std::printf("%d: loss %.4f\n", step, trainer.step(x, target));

  trainer.infer(x, y);
  transfer(ctx, std::as_const(y).view(), HostView<float, 2>(outputs.data(), kItems, 1));
  // [/snippet]

  // [snippet graph]
  // trainer.params is empty after this call.
  const auto frozen = freeze(ctx, std::move(trainer.params), {.weights = Weights::bfloat16});
  Carry<decltype(model), float, Cuda> carry;
  const auto pass = [&] {
    model.begin(ctx, model_params(frozen), kItems, carry);
    infer(model, ctx, frozen, x, carry, y);
  };
  pass();  // allocates memory and makes the cuBLAS handle

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  expect_success(cudaStreamBeginCapture(ctx.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  pass();
  expect_success(cudaStreamEndCapture(ctx.stream(), &graph), "cudaStreamEndCapture");
  expect_success(cudaGraphInstantiate(&instance, graph, 0), "cudaGraphInstantiate");
  expect_success(cudaGraphLaunch(instance, ctx.stream()), "cudaGraphLaunch");  // as often as you like
  // [/snippet]
  transfer(ctx, std::as_const(y).view(), HostView<float, 2>(rounded.data(), kItems, 1));
  cudaGraphExecDestroy(instance);
  cudaGraphDestroy(graph);

  float largest = 0;
  for (std::size_t n = 0; n < outputs.size(); ++n) largest = std::max(largest, std::abs(outputs[n] - rounded[n]));
  std::printf("bfloat16 weights change an output by %.4f at most\n", largest);
  if (!(largest < 0.1f)) throw Error("cuda_training: outputs with bfloat16 weights: expected a difference below 0.1");
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 200;
  if (argc > 1) {
    const char* end = argv[1] + std::strlen(argv[1]);
    const auto [stopped, error] = std::from_chars(argv[1], end, steps);
    if (argc > 2 || error != std::errc() || stopped != end || steps < 0) {
      std::fprintf(stderr, "usage: cuda_training [steps], a whole number of at least 0\n");
      return 2;
    }
  }
  try {
    run(steps);
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
