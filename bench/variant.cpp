#include "support/mixing.hpp"

// Times one layer with a different update rule, or with a gate that mixes the probabilities of items, compared with a
// plain layer.
namespace {

using namespace bench;

template <class RuleT>
void layer_rule(benchmark::State& state, RuleT rule) {
  const Shape s = Shape::of(state);
  Run run(Residual{rule, plain_mixture(s)}, s.items), plain(Residual{update::Plain{}, plain_mixture(s)}, s.items);
  const auto train = [](auto& r) {
    return [&r] {
      r.forward();
      r.backward();
    };
  };
  Rounds rounds;
  rounds.time([&] { run.infer(); });
  const auto infer = rounds.time([&] { plain.infer(); });
  const auto train_run = rounds.time(train(run)), train_plain = rounds.time(train(plain));
  run_rounds(state, rounds);
  count(state, "over_plain", rounds.ratio(0, infer));
  count(state, "train_over_plain", rounds.ratio(train_run, train_plain));
}
void rule_shapes(benchmark::internal::Benchmark* b) { shapes(b, {{4096, 512, 2048, 8, 2}, {4096, 352, 352, 16, 2}}); }
BENCHMARK_CAPTURE(layer_rule, HeavyBall, update::HeavyBall{})->Apply(rule_shapes);
BENCHMARK_CAPTURE(layer_rule, Adam, update::Adam{})->Apply(rule_shapes);

template <class MixingT>
void layer_mixing(benchmark::State& state, MixingT mixing, double (*flop)(Index items, Index dim)) {
  const Shape s = Shape::of(state);
  Run plain(plain_mixture(s), s.items);
  const Attended attended(plain.ctx, plain.x);
  using Model = Mixture<MixingGate<MixingT>, Mlp<GeluTanh>>;
  Run<Model> run(Model{mixing_gate(s, mixing), plain_expert(s)}, s.items, mixing_extra(mixing, attended.trace()));
  Rounds rounds;
  rounds.time([&] { run.infer(); });
  const auto infer = rounds.time([&] { plain.infer(); });
  run_rounds(state, rounds);
  const double arithmetic = 1 + flop(s.items, s.dim) / s.flop();
  count(state, "over_plain", rounds.ratio(0, infer));
  count(state, "arithmetic", arithmetic);
  count(state, "over_arithmetic", rounds.ratio(0, infer) / arithmetic);
}
BENCHMARK_CAPTURE(layer_mixing, SimilarityAware, TokenSimilarity{}, similarity_flop)->Apply(rule_shapes);
BENCHMARK_CAPTURE(layer_mixing, AttentionAware, AttentionPosterior{}, posterior_flop)->Apply(rule_shapes);
BENCHMARK_CAPTURE(layer_mixing, AttentionAwareSequence,
                  AttentionPosterior{.head = FollowedHead::lowest_entropy_of_sequence}, posterior_flop)
    ->Apply(rule_shapes);

}  // namespace
