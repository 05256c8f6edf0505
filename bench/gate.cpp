#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "support/mixing.hpp"

// Times each kind of gate (router) without experts, including the sort of the picks by expert, forward and backward.
namespace {

using namespace bench;

constexpr Shape kShape{4096, 512, 0, 16, 2};

template <class GateT>
void time_gate(benchmark::State& state, const GateT& options, const Extra<GateT, float, Cpu>& extra) {
  const Shape& s = kShape;
  Cpu::Context ctx = context();
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
  count(state, "over_logits", rounds.ratio(0, product));  // the entry `product` times only the matrix product x W
}

/// Times one gate with noise and with items in sequences. If the gate reads attention weights, a real attention
/// computes them.
template <class GateT>
void gate(benchmark::State& state, GateT options) {
  using E = Extra<GateT, float, Cpu>;
  const rows::Extras<float> extras(kShape.items, kShape.dim);
  const auto extra = extras.of<E>({.length = kLength, .noise = true}, 0, kShape.items);
  if constexpr (requires(E e) { e.mixing.trace; }) {
    Cpu::Context ctx = context();
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.7, kShape.items, kShape.dim);
    const Attended attended(ctx, x);
    time_gate(state, options, E{extra.scores, {attended.trace(), {}}, extra.selection});
  } else {
    time_gate(state, options, extra);
  }
}

BENCHMARK_CAPTURE(gate, SoftmaxTopK, plain_gate(kShape))->Apply(timed);
BENCHMARK_CAPTURE(gate, VMoe, published::vmoe({.experts = kShape.experts}))->Apply(timed);
BENCHMARK_CAPTURE(gate, Switch, published::switch_transformer({.experts = kShape.experts}))->Apply(timed);
BENCHMARK_CAPTURE(gate, GShardTop2, published::gshard({.experts = kShape.experts}))->Apply(timed);

// Times every gate, and every part of a gate, in tests/descriptors. Each part is combined with the simplest other parts
// that fit, to make a complete gate.
constexpr rows::Size kSize{.width = kShape.dim,
                           .tokens = 1,
                           .hidden = kShape.dim / 2,
                           .experts = kShape.experts,
                           .slots = kLength * kShape.picks / kShape.experts,
                           .sequence = kLength};
template <class S, class M, class P, class A>
auto made_of(S scores, M mixing, P selection, A auxiliary) {
  using namespace rows;
  return Composition{scores, mixing, selection, auxiliary, residual, plain, linear}.gate(kSize);
}
#define GATE(name, ...) BENCHMARK_CAPTURE(gate, name, made_of(__VA_ARGS__))->Apply(timed);

#define ROW(name) GATE(name, rows::name, rows::independent, rows::top_k, rows::no_loss)
#include "rows/scores.inc"
#undef ROW
#define ROW(name) GATE(name, rows::linear_scores, rows::name, rows::top_k, rows::no_loss)
#include "rows/mixing.inc"
#undef ROW
#define ROW(name) GATE(name, rows::linear_scores, rows::independent, rows::name, rows::no_loss)
#include "rows/selection.inc"
#undef ROW
#define ROW(name) GATE(name, rows::linear_scores, rows::independent, rows::noisy_top_k, rows::name)
#include "rows/auxiliary.inc"
#undef ROW
#define ROW(name) GATE(name, rows::absent, rows::absent, rows::name, rows::absent)
#include "rows/gate.inc"

}  // namespace
