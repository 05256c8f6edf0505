#include "support/allocations.hpp"
#include "support/mixing.hpp"

// Measures six layers of the medium language model of MomentumSMoE and Graph of Tokens, without its vocabulary.
// Compares the time and memory of update rules, and of gates that mix items, with a plain model. (The AttentionAware
// gate and its plain model also have attention.)
namespace {

using namespace bench;

constexpr Shape kMedium{4096, 352, 352, 16, 2};
constexpr Index kDepth = 6;

/// Measures the most bytes that a model holds in inference and in a training step, including parameters.
template <class ModelT>
struct Measured {
  Run<ModelT> run;
  double infer_bytes = 0, train_bytes = 0;

  explicit Measured(const ModelT& model, const Extra<AsLayer<ModelT, float, Cpu>, float, Cpu>& extra = {})
      : run(model, kMedium.items, extra), before_(heap::live - values()) {
    heap::restart_peak();
    infer();
    infer_bytes = most();
    train();
    train_bytes = most();
  }
  void infer() {
    run.begin();
    run.infer();
  }
  void train() {
    run.begin();
    run.forward();
    run.backward();
  }

 private:
  long values() const { return static_cast<long>(count_values(run.params)) * static_cast<long>(sizeof(float)); }
  double most() {
    const long bytes = heap::peak - before_;
    heap::restart_peak();
    return static_cast<double>(bytes);
  }
  long before_;
};

/// Compares the time and memory of `model` with `plain`.
/// @param arithmetic  operations of the forward pass of `model`, divided by the operations of the forward pass of
///         `plain`
template <class ModelT, class PlainT>
void compare(benchmark::State& state, Measured<ModelT>& model, Measured<PlainT>& plain, double arithmetic) {
  Rounds rounds;
  rounds.time([&] { model.infer(); });
  const auto infer = rounds.time([&] { plain.infer(); });
  const auto train = rounds.time([&] { model.train(); });
  const auto train_plain = rounds.time([&] { plain.train(); });
  run_rounds(state, rounds);
  count(state, "train_ms", rounds.median_of(train) * 1e3);
  count(state, "infer_over_plain", rounds.ratio(0, infer));
  count(state, "train_over_plain", rounds.ratio(train, train_plain));
  count(state, "arithmetic", arithmetic);
  count(state, "infer_over_arithmetic", rounds.ratio(0, infer) / arithmetic);
  count(state, "memory_over_plain", model.infer_bytes / plain.infer_bytes);
  count(state, "train_memory_over_plain", model.train_bytes / plain.train_bytes);
}

template <class RuleT, class GateT>
auto stack(const RuleT& rule, const GateT& gate) {
  return Stack{Residual{rule, Mixture{gate, plain_expert(kMedium)}}, kDepth};
}
template <class GateT>
auto blocks(const GateT& gate) {
  return Stack{Block{Residual{update::Plain{}, Attention{.model_dim = kMedium.dim, .heads = kHeads}},
                     Residual{update::Plain{}, Mixture{gate, plain_expert(kMedium)}}},
               kDepth};
}

template <class RuleT>
void with_rule(benchmark::State& state, RuleT rule) {
  Measured plain(stack(update::Plain{}, plain_gate(kMedium)));
  Measured model(stack(rule, plain_gate(kMedium)));
  compare(state, model, plain, 1);
}
void similarity_aware(benchmark::State& state) {
  Measured plain(stack(update::Plain{}, plain_gate(kMedium)));
  const auto model = stack(update::Plain{}, mixing_gate(kMedium, TokenSimilarity{}));
  Extra<AsLayer<std::remove_const_t<decltype(model)>, float, Cpu>, float, Cpu> extra{};
  extra.mixing.length = kLength;
  Measured measured(model, extra);
  compare(state, measured, plain, 1 + similarity_flop(kMedium.items, kMedium.dim) / kMedium.flop());
}
void attention_aware(benchmark::State& state) {
  const auto plain_blocks = blocks(plain_gate(kMedium));
  const auto model = blocks(mixing_gate(kMedium, AttentionPosterior{}));
  const auto in_sequences = [](auto extra) {
    extra.attention.length = kLength;
    return extra;
  };
  Measured plain(plain_blocks, in_sequences(Extra<std::remove_const_t<decltype(plain_blocks)>, float, Cpu>{}));
  Measured measured(model, in_sequences(Extra<std::remove_const_t<decltype(model)>, float, Cpu>{}));
  const double n = kMedium.items, d = kMedium.dim, attention = 8 * n * d * d + 2 * n * kLength * d;
  compare(state, measured, plain, 1 + posterior_flop(kMedium.items, kMedium.dim) / (attention + kMedium.flop()));
}

BENCHMARK_CAPTURE(with_rule, HeavyBall, update::HeavyBall{})->Name("model/HeavyBall")->Apply(timed);
BENCHMARK_CAPTURE(with_rule, AdamFirst, update::First{update::Adam{}, update::HeavyBall{}})
    ->Name("model/AdamFirst")
    ->Apply(timed);
BENCHMARK(similarity_aware)->Name("model/SimilarityAware")->Apply(timed);
BENCHMARK(attention_aware)->Name("model/AttentionAware")->Apply(timed);

}  // namespace
