// Builds the layers of four papers from policies, and trains each for a few steps on random data.
#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <vector>
using namespace gatefold;

namespace {

/// Trains a layer for 20 steps, and prints the loss before and after them.
template <class LayerT, class ExtraT>
void train(const char* name, Cpu::Context& ctx, const LayerT& layer, Index items, const ExtraT& extra) {
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::AdamW{.lr = 1e-2}, Seed{42}};
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, items, layer.in_dim());
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, layer.out_dim());
  const double before = trainer.step(x, target, extra);
  double after = before;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    ExtraT now = extra;
    if constexpr (requires { now.selection.random->step; })
      if (now.selection.random) now.selection.random->step = step;  // draws new noise in every step
    after = trainer.step(x, target, now);
  }
  std::printf("%-40s loss %.4f, after 20 steps %.4f\n", name, before, after);
}

}  // namespace

int main() {
  Cpu::Context ctx;
  const Index dim = 16, length = 8, items = 4 * length;  // 4 sequences of 8 tokens

  // [snippet papers]
  const Mlp<Gelu> mlp{.model_dim = dim, .hidden_dim = 32};

  // 001 MomentumSMoE: Adam in the first layer, heavy ball in the others; or Robust{}, Nesterov{}, SharpnessAware{}, …
  const Stack momentum{Residual{update::First{update::Adam{.epsilon = 1e-2}, update::HeavyBall{.mu = 0.7}},
                                Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, mlp}},
                       3};

  // 002 Graph of Tokens: similar tokens share their probabilities, with any scores and any selection.
  const Residual similar{update::HeavyBall{},
                         Mixture{SimilarityAware<XMoe>{.scores = {.experts = 4}, .mixing = {.tau = 2}}, mlp}};
  Extra<decltype(similar), float, Cpu> sequences;
  sequences.mixing.length = length;  // only tokens of one sequence share

  // Alternatively, tokens that attend to each other share their probabilities. A Block passes the attention trace to
  // the gate in forward, and the gradient of the trace to the attention in backward.
  const Block attending{Residual{update::Plain{}, Attention{.model_dim = dim, .heads = 2}},
                        Residual{update::Plain{}, Mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 4}}, mlp}}};
  Extra<decltype(attending), float, Cpu> attention;
  attention.attention.length = length;

  // 000 Mixture of Transformers: an item is a whole sequence, an expert is a transformer, the router starts at zero.
  const Mixture transformers{
      SoftmaxNoisyTop1{.scores = {.experts = 3, .length = length, .bias = false, .initial = Initial::zero()}},
      TransformerExpert<Gelu>{.model_dim = dim, .hidden_dim = 32, .heads = 2, .length = length}};

  // 003 Expert count: scores and experts work on patches, with a cubic activation; the output is one number.
  const Mixture patches{
      PatchNoisyTop1{.scores = {.experts = 4, .length = length}},
      PatchMlp<Cubic>{.model_dim = dim, .patches = length, .filters = 8, .initial = Initial::normal(0.3)}};

  Extra<decltype(transformers), float, Cpu> noise;
  noise.selection.random = Random{Seed{7}, 0};  // seed and step; leave it empty for evaluation without noise
  // [/snippet]
  Extra<decltype(patches), float, Cpu> noisy_patches;
  noisy_patches.selection.random = noise.selection.random;

  train("001 MomentumSMoE", ctx, momentum, items, Extra<decltype(momentum), float, Cpu>{});
  train("002 Graph of Tokens, similarity", ctx, similar, items, sequences);
  train("002 Graph of Tokens, attention", ctx, attending, items, attention);
  train("000 Mixture of Transformers", ctx, transformers, items / length, noise);
  train("003 Expert count", ctx, patches, items / length, noisy_patches);
}
