#include <utility>
#include <vector>

#include "support/layer.hpp"

// Times how a language model generates one more token: with a KV cache, and without, by passing all tokens in reach of
// attention through the model again.
namespace {

using namespace bench;

/// The sizes of a small model of characters: 4 blocks, width 128, 8 experts of hidden width 256, top 2, 64 characters.
const LanguageSizes kSizes{.vocabulary = 90, .model_dim = 128, .heads = 4, .window = 64, .depth = 4};
constexpr Shape kShape{64, 128, 256, 8, 2};

auto characters() {
  return switch_model(kSizes, update::HeavyBall{}, Mixture{plain_gate(kShape), plain_expert(kShape)});
}

/// A language model with its parameters and its state for one sequence. All samplers have the same parameters.
struct Sampler {
  using Model = decltype(characters());
  using Extra = gatefold::Extra<Model, float, Cpu>;

  Cpu::Context ctx;
  Model model = characters();
  StreamedCrossEntropy loss = kSizes.loss();
  Params<Model, float, Cpu> params = model.init<float, Cpu>(ctx, Seed{1});
  Params<StreamedCrossEntropy, float, Cpu> output = loss.init<float, Cpu>(ctx, Seed{2});
  Carry<Model, float, Cpu> carry{};
  Tensor<float, 2, Cpu> y{}, z{1, kSizes.vocabulary};

  explicit Sampler(int threads) : ctx(context(threads)) {}
  /// Computes the logits of the token that follows the given ids.
  void read(const std::vector<Index>& ids, const AttentionMemory<float, Cpu>& memory) {
    const auto count = static_cast<Index>(ids.size());
    y.resize(count, kSizes.model_dim);
    model.begin(ctx, params, count, carry);
    infer(model, ctx, params, ids, carry, y, extra_of<Extra>(Segment<float, Cpu>{.length = count, .memory = memory}));
    loss.logits(ctx, output, params, std::as_const(y).view().rows(count - 1, 1), z.view());
  }
};

void sampling(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  Sampler cached(threads), again(threads);
  SegmentMemory<float, Cpu> memory(cached.ctx,
                                   {.layers = kSizes.depth, .width = 2 * kSizes.model_dim, .most = kSizes.window - 1});
  std::vector<Index> window(static_cast<std::size_t>(kSizes.window));
  for (std::size_t i = 0; i < window.size(); ++i) window[i] = static_cast<Index>(i * i) % kSizes.vocabulary;
  const std::vector<Index> token{3};
  cached.read(window, memory.of(kSizes.window));
  memory.advance();
  Rounds rounds;
  const auto one = rounds.time([&] {
    cached.read(token, memory.of(1));
    memory.advance();
  });
  const auto all = rounds.time([&] { again.read(window, {}); });
  run_rounds(state, rounds, one);
  count(state, "tokens_per_s", 1 / rounds.median_of(one));
  count(state, "again_over_cached", rounds.ratio(all, one));
}
BENCHMARK(sampling)->Apply(timed)->ArgName("threads")->Arg(1)->Arg(2);

}  // namespace
