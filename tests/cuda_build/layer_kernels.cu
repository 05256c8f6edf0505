// The kernels of one layer: trained in float and double, and run with frozen weights in bfloat16. cmake/gpu_report.sh
// compiles this file for several architectures and writes what ptxas says into docs/gpu.md.
#include <gatefold/gatefold.cuh>
#include <utility>

using namespace gatefold;

namespace {

constexpr Index kItems = 64, kDim = 32;

auto layer() {
  return Residual{update::HeavyBall{},
                  Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}}, Mlp<Gelu>{kDim, 2 * kDim}}};
}

template <class T>
void train(Cuda::Context& ctx) {
  Trainer trainer{ctx, layer(), MeanSquaredError{}, optim::AdamW{}, Seed{1}, Element<T>{}};
  const Tensor<T, 2, Cuda> x = uniform_tensor<T>(ctx, Seed{2}, 1.0, kItems, kDim);
  trainer.step(x, x);
}

void serve(Cuda::Context& ctx) {
  const auto model = layer();
  const auto frozen = freeze(ctx, model.init<float, Cuda>(ctx, Seed{1}), {.bfloat16 = true});
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, kItems, kDim);
  Tensor<float, 2, Cuda> y(kItems, kDim);
  Carry<decltype(model), float, Cuda> carry;
  model.begin(ctx, model_params(frozen), kItems, carry);
  infer<float, Cuda>(model, ctx, frozen, x, carry, y);
}

}  // namespace

int main() {
  Cuda::Context ctx;
  train<float>(ctx);
  train<double>(ctx);
  serve(ctx);
}
