// Inference with frozen parameters. After the first call with the same number of items, inference allocates no memory.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <utility>
using namespace gatefold;

template <class F>
static double milliseconds(F&& f) {
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

int main() {
  // [snippet serving]
  Cpu::Context ctx;
  const Stack model{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                                                          GatedMlp<Silu>{.model_dim = 256, .hidden_dim = 512}}},
                    4};
  auto params = model.init<float, Cpu>(ctx, Seed{1});                // or trained parameters, or io::load
  Carry<decltype(model), float, Cpu> carry;                          // the momentum, from layer to layer
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 16, 256);  // [N, D] a batch of 16 tokens
  Tensor<float, 2, Cpu> y(16, 256), rounded(16, 256);

  const auto run = [&](const auto& weights, auto& out) {
    model.begin(ctx, model_params(weights), x.extent(0), carry);
    infer(model, ctx, weights, x, carry, out);
  };
  const auto frozen = freeze(ctx, std::move(params));  // faster, the same bits
  run(frozen, y);
  // Weights::bfloat16: half the bytes; Weights::int8: about a quarter; Weights::int4: about an eighth
  const auto bytes = freeze(ctx, model.init<float, Cpu>(ctx, Seed{1}), {.weights = Weights::int8});
  run(bytes, rounded);
  // [/snippet]

  double worst = 0;
  for (Index i = 0; i < y.size(); ++i)
    worst = std::max(worst, std::abs(double(y.data()[i]) - double(rounded.data()[i])));
  std::printf("frozen %.3f ms, in 8 bits %.3f ms; largest difference %.1e\n", milliseconds([&] { run(frozen, y); }),
              milliseconds([&] { run(bytes, rounded); }), worst);
}
