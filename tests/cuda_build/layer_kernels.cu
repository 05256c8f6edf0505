// The kernels of all kinds of layers: trained in float and double, trained with the experts' products in bfloat16, and
// run with frozen weights in bfloat16.
// cmake/gpu_report.sh compiles this file for several architectures and writes what ptxas says into docs/how-to/gpu.md.
#include <gatefold/gatefold.cuh>
#include <utility>

using namespace gatefold;

namespace {

constexpr Index kItems = 64, kDim = 32;

template <class G, class E>
auto mixture(G gate, const E& expert) {
  if constexpr (requires { gate.count; }) {
    gate.count = 8;
  } else {
    gate.scores.experts = 8;
  }
  return Mixture{gate, expert};
}
template <class Rule>
auto layer(const Rule& rule) {
  return Residual{rule, mixture(SoftmaxTopK{.selection = {.k = 2}}, Mlp<Gelu>{kDim, 2 * kDim})};
}
const GatedMlp<Silu> gated{.model_dim = kDim, .hidden_dim = 2 * kDim};
auto attention() { return Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = kDim, .heads = 2}}}; }

template <class T, class C, class L, class OptimizerT>
void train(C& ctx, const L& model, const OptimizerT& optimizer) {
  Trainer trainer{ctx, model, MeanSquaredError{}, optimizer, Seed{1}, Element<T>{}};
  const Tensor<T, 2, typename C::Backend> x = uniform_tensor<T>(ctx, Seed{2}, 1.0, kItems, kDim);
  trainer.step(x, x);
}

/// Trains experts whose products have their own epilogues, both mixings, every update rule, and gates that drop picks,
/// let experts choose items, or mix items.
template <class T>
void train_all(Cuda::Context& ctx) {
  const Linear linear{.model_dim = kDim};
  const TransformerExpert<Gelu> sequences{.model_dim = kDim / 4, .hidden_dim = 8, .length = 4};
  const auto with_rule = [&](const auto& rule) { train<T>(ctx, Residual{rule, OneExpert{linear}}, optim::Sgd{}); };
  train<T>(ctx, layer(update::HeavyBall{}), optim::AdamW{});
  train<T>(ctx, Block{attention(), Residual{update::Adam{}, mixture(AttentionAware<SoftmaxTopK>{}, gated)}},
           optim::Clipped{optim::Sgd{}, 1.0});
  train<T>(ctx, mixture(SimilarityAware<XMoe>{}, LayerNorm{.model_dim = kDim}), optim::NormalizedGd{});
  train<T>(ctx, mixture(SoftMoe{.slots = 2}, linear), optim::Sgd{});
  train<T>(ctx, mixture(VMoe{}, linear), optim::Sgd{});
  train<T>(ctx, mixture(SigmoidTopK{}, linear), optim::Sgd{});
  train<T>(ctx, mixture(SoftmaxExpertChoice{}, sequences), optim::Sgd{});
  with_rule(update::First{update::RmsProp{}, update::Nesterov{}});
  with_rule(update::TimeVarying{});
  with_rule(update::ScheduledRestart{});
  with_rule(update::Robust{});
  with_rule(update::SharpnessAware{});
  with_rule(update::ComplexMomentum{});
  with_rule(update::ZeroOrderHold{});
  with_rule(update::LearnedHeavyBall{});
}

template <class C, class L>
void serve(C& ctx, const L& model, const FreezeOptions& how) {
  using B = typename C::Backend;
  const auto frozen = freeze(ctx, model.template init<float, B>(ctx, Seed{1}), how);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, kItems, kDim);
  Tensor<float, 2, B> y(kItems, kDim);
  Carry<L, float, B> carry;
  model.begin(ctx, model_params(frozen), kItems, carry);
  infer<float, B>(model, ctx, frozen, x, carry, y);
}

/// Trains and runs the layers whose code differs on CudaBf16, because the products round: plain and gated experts, and
/// an activation.
void round_all() {
  CudaBf16::Context ctx;
  const auto gated_mixture = mixture(SoftmaxTopK{}, gated);
  train<float>(ctx, layer(update::HeavyBall{}), optim::AdamW{});
  train<float>(ctx, gated_mixture, optim::Sgd{});
  train<float>(ctx, mixture(SoftMoe{.slots = 2}, Linear{.model_dim = kDim}), optim::Sgd{});
  serve(ctx, layer(update::HeavyBall{}), {});
  serve(ctx, Residual{update::Plain{}, gated_mixture}, {});
}

}  // namespace

int main() {
  Cuda::Context ctx;
  train_all<float>(ctx);
  train_all<double>(ctx);
  serve(ctx, layer(update::HeavyBall{}), {.weights = Weights::bfloat16});
  serve(ctx, Residual{update::Plain{}, mixture(SoftmaxTopK{}, gated)}, {.weights = Weights::bfloat16});
  round_all();
}
