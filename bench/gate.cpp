#include <utility>

#include "support/mixing.hpp"

// Every gate alone: scores, mixing, selection and the plan, forward and backward.
namespace {

using namespace bench;

constexpr Shape kShape{4096, 512, 0, 16, 2};

template <class GateT>
void time_gate(benchmark::State& state, const GateT& options, const Extra<GateT, float, Cpu>& extra) {
  const Shape& s = kShape;
  Cpu::Context ctx;
  const GateT gate = with_model_dim(options, s.dim);
  const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.7, s.items, s.dim);
  auto dx = zeros_like(ctx, x);
  Plan<GateT, float, Cpu> plan;
  Saved<GateT, float, Cpu> saved;
  ExtraGrad<GateT, float, Cpu> dextra{};
  Tensor<float, 2, Cpu> logits(s.items, s.experts);
  const LinearScores linear{.model_dim = s.dim, .experts = s.experts, .bias = false};
  const auto weights = linear.init<float, Cpu>(ctx, Seed{3});

  Rounds rounds;
  rounds.time([&] { gate.forward(ctx, params, x, plan, saved, extra); });
  const auto product = rounds.time([&] { linear.forward(ctx, weights, x, logits); });
  const auto backward = rounds.time([&] {
    auto mark = ctx.mark();
    const auto dplan = plan.grad(ctx);
    gate.backward(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra);
  });
  run_rounds(state, rounds);
  count(state, "backward_ms", rounds.median_of(backward) * 1e3);
  count(state, "items_per_second", static_cast<double>(s.items) / rounds.median_of(0));
  count(state, "over_logits", rounds.ratio(0, product));  // the product x W alone
}

template <class GateT>
void gate(benchmark::State& state, GateT options) {
  time_gate(state, options, {});
}
/// Noise is on: one of the extra inputs has a place in a random stream.
template <class GateT>
void noisy_gate(benchmark::State& state, GateT options) {
  Extra<GateT, float, Cpu> extra{};
  if constexpr (requires { extra.selection.random; }) {
    extra.selection.random = Random{Seed{5}, 0};
  } else {
    extra.scores.random = Random{Seed{5}, 0};
  }
  time_gate(state, options, extra);
}
template <class MixingT>
void mixing(benchmark::State& state, MixingT options) {
  Cpu::Context ctx;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.7, kShape.items, kShape.dim);
  const Attended attended(ctx, x);
  time_gate(state, mixing_gate(kShape, options), mixing_extra(options, attended.trace()));
}
void hash(benchmark::State& state) {
  Tensor<Index, 1, Cpu> ids(kShape.items);
  for (Index n = 0; n < ids.size(); ++n) ids(n) = n * 7919;
  time_gate(state, HashGate{.count = kShape.experts, .k = kShape.picks}, {std::as_const(ids).view()});
}
void expert_choice(benchmark::State& state) {
  Extra<SoftmaxExpertChoice, float, Cpu> extra{};
  extra.selection.length = kLength;
  time_gate(state, SoftmaxExpertChoice{.scores = {.experts = kShape.experts}, .selection = {.factor = 2}}, extra);
}
void soft_moe(benchmark::State& state) {
  const Index slots = kLength * kShape.picks / kShape.experts;  // of an expert: as many in all as the others have picks
  time_gate(state, SoftMoe{.count = kShape.experts, .slots = slots}, {.length = kLength});
}

BENCHMARK_CAPTURE(gate, SoftmaxTopK, plain_gate(kShape))->Apply(timed);
BENCHMARK_CAPTURE(gate, WithBalance,
                  WithAuxiliary<SoftmaxTopK, Balance>{.scores = {.experts = kShape.experts}, .auxiliary = {Balance{}}})
    ->Apply(timed);
BENCHMARK_CAPTURE(gate, XMoe, XMoe{.scores = {.experts = kShape.experts}})->Apply(timed);
BENCHMARK_CAPTURE(gate, SmoeDropout, SmoeDropout{.scores = {.scores = {.experts = kShape.experts}}})->Apply(timed);
BENCHMARK_CAPTURE(gate, SigmoidTopK, SigmoidTopK{.scores = {.experts = kShape.experts}, .selection = {.k = 2}})->Apply(timed);
BENCHMARK_CAPTURE(noisy_gate, SoftmaxNoisyTop1, SoftmaxNoisyTop1{.scores = {.experts = kShape.experts}})->Apply(timed);
BENCHMARK_CAPTURE(noisy_gate, SoftmaxNoisyTopK, SoftmaxNoisyTopK{.scores = {.experts = kShape.experts}})->Apply(timed);
BENCHMARK_CAPTURE(noisy_gate, VMoe, published::vmoe(kShape.experts))->Apply(timed);
BENCHMARK_CAPTURE(noisy_gate, Switch, published::switch_transformer(kShape.experts))->Apply(timed);
BENCHMARK_CAPTURE(gate, GShardTop2, published::gshard(kShape.experts))->Apply(timed);
BENCHMARK_CAPTURE(mixing, TokenSimilarity, TokenSimilarity{})->Apply(timed);
BENCHMARK_CAPTURE(mixing, AttentionPosterior, AttentionPosterior{})->Apply(timed);
BENCHMARK(hash)->Name("gate/HashGate")->Apply(timed);
BENCHMARK(expert_choice)->Name("gate/SoftmaxExpertChoice")->Apply(timed);
BENCHMARK(soft_moe)->Name("gate/SoftMoe")->Apply(timed);

}  // namespace
