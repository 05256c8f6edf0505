#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/allocations.hpp"
#include "support/layer.hpp"

// Times whole training steps of two language models, and one attention layer and one mixture layer of each. The small
// model of characters is also in peers/language_torch.py. The medium model is from the papers MomentumSMoE and Graph of
// Tokens, with the vocabulary of WikiText-103.
namespace {

using namespace bench;

/// The sizes of a language model with the layout of the Switch Transformer, and the operations of a forward pass.
struct Sizes {
  const char* name;
  LanguageSizes language;
  Shape mixture;  // mixture.items is the number of items in a batch
  Index length;

  // Numbers of floating-point operations of forward; a multiply-add counts as two. A training step counts as three
  // times as many, because recomputation in backward does not count.
  double items() const { return static_cast<double>(mixture.items); }
  double dim() const { return static_cast<double>(language.model_dim); }
  double attention_flop() const {
    return items() * (8 * dim() * dim() + 4 * dim() * static_cast<double>(length + 1) / 2);
  }
  double output_flop() const { return 2 * items() * dim() * static_cast<double>(language.vocabulary); }
  double flop() const {
    return static_cast<double>(language.depth) * (attention_flop() + mixture.flop()) + output_flop();
  }
};

/// A small language model: 4 blocks, width 128, 8 experts of hidden width 256, top 2. A batch has 16 sequences of 64
/// characters.
const Sizes kCharacters{"characters",
                        {.vocabulary = 90, .model_dim = 128, .heads = 4, .window = 64, .depth = 4},
                        {16 * 64, 128, 256, 8, 2},
                        64};
/// The medium language model of MomentumSMoE and Graph of Tokens, with 215.7 million parameters. A batch has 8
/// sequences of 512 words, a sixth of the papers' batch.
const Sizes kMedium{
    "medium",
    {.vocabulary = LanguageSizes::wikitext_103, .model_dim = 352, .heads = 8, .window = 512, .depth = 6},
    {8 * 512, 352, 352, 16, 2},
    512};

auto trainer_of(Cpu::Context& ctx, const Sizes& s) {
  return Trainer{ctx,
                 switch_model<language::Traced>(s.language, update::HeavyBall{.mu = 0.7},
                                                Mixture{plain_gate(s.mixture), plain_expert(s.mixture)}),
                 s.language.loss(), optim::Clipped{optim::AdamW{.lr = 1e-3}, 1.0}, Seed{1}};
}

template <class LayerT>
void add_layer(Rounds& rounds, const LayerT& layer, const Sizes& s, std::size_t& at) {
  using Layer = AsLayer<LayerT, float, Cpu>;
  auto run = std::make_shared<Run<LayerT>>(layer, s.mixture.items,
                                           extra_of<Extra<Layer, float, Cpu>>(Segment<float, Cpu>{.length = s.length}));
  at = rounds.time([run] {
    run->begin();
    run->forward();
    run->backward();
  });
}

void language_train(benchmark::State& state, const Sizes& s) {
  Cpu::Context ctx = context();
  const long before = heap::live;
  heap::restart_peak();
  auto trainer = trainer_of(ctx, s);
  using TrainerT = decltype(trainer);
  std::vector<Index> ids(static_cast<std::size_t>(s.mixture.items)), next(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<Index>(i * i * 7 + i / 3) % s.language.vocabulary;
    next[i] = static_cast<Index>(i * i * 5 + i) % s.language.vocabulary;
  }
  const auto extra = extra_of<typename TrainerT::Extra>(Segment<float, Cpu>{.length = s.length});
  Rounds rounds;
  const int threads = ctx.threads();
  const auto first = add_peak(rounds, threads);
  const auto step = rounds.time([&] { trainer.step(ids, next, extra); });
  const double held = static_cast<double>(heap::peak - before);

  // Times an attention layer and a mixture layer separately, with random items.
  std::size_t attention = 0, mixture = 0;
  add_layer(rounds, Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{s.language.model_dim, s.language.heads}}},
            s, attention);
  add_layer(rounds,
            Residual{update::HeavyBall{.mu = 0.7},
                     PreNorm{LayerNorm{}, Mixture{plain_gate(s.mixture), plain_expert(s.mixture)}}},
            s, mixture);
  const auto last = add_peak(rounds, threads);
  run_rounds(state, rounds, step);

  const auto share = [&](std::size_t entry, double flop) {
    return rounds.median_over([&](auto of) { return 3 * flop / of(entry) / ((of(first) + of(last)) / 2); });
  };
  count(state, "tokens_per_s", s.items() / rounds.median_of(step));
  count(state, "peak_share", share(step, s.flop()));
  count(state, "parameters", static_cast<double>(count_values(trainer.params)));
  count(state, "peak_bytes", held);
  count(state, "attention_ms", rounds.median_of(attention) * 1e3);
  count(state, "attention_peak_share", share(attention, s.attention_flop()));
  count(state, "mixture_ms", rounds.median_of(mixture) * 1e3);
  count(state, "mixture_peak_share", share(mixture, s.mixture.flop()));
}
BENCHMARK_CAPTURE(language_train, characters, kCharacters)->Apply(timed);
BENCHMARK_CAPTURE(language_train, medium, kMedium)->Apply(timed);

}  // namespace
