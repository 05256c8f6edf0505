#pragma once

#include <gatefold/gatefold.hpp>
#include <string>
#include <utility>

#include "machine.hpp"
#include "threads.hpp"
#include "timing.hpp"

/// Shared code of the benchmarks: layer sizes, a layer with all its state, and registration of benchmarks.
namespace bench {

using namespace gatefold;

/// The sizes of a layer: T tokens, D values per token, H hidden values, E experts, K picks.
struct Shape {
  Index items, dim, hidden, experts, picks;

  static Shape of(const benchmark::State& state) {
    return {state.range(0), state.range(1), state.range(2), state.range(3), state.range(4)};
  }
  double gate_flop() const { return 2.0 * static_cast<double>(items * dim * experts); }
  double expert_flop() const { return 4.0 * static_cast<double>(items * picks) * static_cast<double>(dim * hidden); }
  double flop() const { return gate_flop() + expert_flop(); }
};

inline SoftmaxTopK plain_gate(const Shape& s, bool bias = false) {
  return {.scores = {.experts = s.experts, .bias = bias}, .selection = {.k = s.picks}};
}
inline Mlp<GeluTanh> plain_expert(const Shape& s) {
  return {.model_dim = s.dim, .hidden_dim = s.hidden, .bias = false};
}
inline auto plain_mixture(const Shape& s) { return Mixture{plain_gate(s), plain_expert(s)}; }

/// A layer with its parameters, gradients and saved values, and a batch of random items.
template <class ModelT, class T = float, class BackendT = Cpu>
struct Run {
  using B = BackendT;
  using Layer = AsLayer<ModelT, T, B>;

  Run(const ModelT& model, Index items, const gatefold::Extra<Layer, T, B>& extra_inputs = {}, int threads = 0)
      : ctx(context<B>(threads)),
        layer(as_layer<T, B>(model)),
        params(init_params<T, B>(layer, ctx, Seed{1})),
        extra(extra_inputs),
        x(uniform_tensor<T>(ctx, Seed{2}, 1.7, items, layer.in_dim())),
        y(items, layer.out_dim()) {
    begin();
  }

  void begin() { layer.begin(ctx, params, x.extent(0), carry); }
  // infer() and forward() start a new pass, but reuse the momentum in `carry`, so that the cost of begin() is not
  // measured.
  void infer() { infer(ctx); }
  void infer(typename B::Context& by) {
    update::begin_pass(carry);
    gatefold::infer<T, B>(layer, by, params, x, carry, y, extra);
  }
  void forward() {
    update::begin_pass(carry);
    layer.forward(ctx, params, x, carry, y, saved, extra);
  }
  void backward() {
    if (dy.size() == 0) {
      dy = uniform_tensor<T>(ctx, Seed{3}, 1, y.extent(0), y.extent(1));
      dx = zeros_like(ctx, x);
      grads = zeros_like(ctx, params);
      layer.begin(ctx, params, x.extent(0), dcarry);
      set_zero(ctx, dcarry);
    }
    set_zero_later(ctx, grads);  // a Trainer also starts its steps with this
    gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads, extra);
  }

  typename B::Context ctx;
  Layer layer;
  gatefold::Params<Layer, T, B> params, grads;
  gatefold::Carry<Layer, T, B> carry, dcarry;
  gatefold::Saved<Layer, T, B> saved;
  gatefold::Extra<Layer, T, B> extra;
  Tensor<T, 2, B> x, y, dy, dx;  // x and dx: [N, in_dim]; y and dy: [N, out_dim]
};

/// Returns frozen (packed) parameters with the same values as the parameters of `run`.
template <class RunT>
auto frozen_copy(RunT& run, bool bfloat16) {
  return freeze(run.ctx, init_params<float, Cpu>(run.layer, run.ctx, Seed{1}),
                {.weights = bfloat16 ? Weights::bfloat16 : Weights::unchanged});
}

inline void count(benchmark::State& state, const std::string& name, double value) { state.counters[name] = value; }

/// Measures all entries in turn, round after round. The benchmark reports the median time of the entry `ours`.
inline void run_rounds(benchmark::State& state, Rounds& rounds, std::size_t ours = 0) {
  for (auto _ : state) {
    rounds.run();
    state.SetIterationTime(rounds.median_of(ours));
  }
}
inline std::size_t add_peak(Rounds& rounds, int threads) {
  return rounds.measure([threads] { return fma_peak(threads); });
}

/// The layer sizes with a performance goal (GOALS in bench/table.py). Batches of 16 items or 1 item are decoding.
inline constexpr Shape kTargets[] = {{4096, 512, 2048, 8, 2},  {4096, 352, 352, 16, 2}, {512, 512, 2048, 8, 2},
                                     {4096, 512, 2048, 64, 2}, {8192, 64, 128, 64, 2},  {16, 512, 2048, 8, 2},
                                     {1, 512, 2048, 8, 2}};

/// Makes a benchmark report the milliseconds that Rounds measures.
inline void timed(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
}
inline void shapes(benchmark::internal::Benchmark* b, std::initializer_list<Shape> list) {
  timed(b);
  b->ArgNames({"T", "D", "H", "E", "K"});
  for (const Shape& s : list) b->Args({s.items, s.dim, s.hidden, s.experts, s.picks});
}
inline void all_targets(benchmark::internal::Benchmark* b) {
  for (const Shape& s : kTargets) shapes(b, {s});
}

}  // namespace bench
