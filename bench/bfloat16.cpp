#include "gatefold/tensor/pack.hpp"
#include "support/beside.hpp"

// CpuBf16 beside Cpu in one run: one layer whose experts multiply bfloat16, and in float.
namespace {

using namespace bench;

template <class B>
using LayerRun = Run<decltype(plain_mixture(Shape{})), float, B>;

/// Inference.
void layer_bf16(benchmark::State& state) {
  const Shape s = Shape::of(state);
  LayerRun<Cpu> floats(plain_mixture(s), s.items);
  LayerRun<CpuBf16> halves(plain_mixture(s), s.items);
  Rounds rounds;
  const BetweenPeaks layer(rounds, halves.ctx.threads(), [&] { halves.infer(); });
  const auto plain = rounds.time([&] { floats.infer(); });
  run_rounds(state, rounds, layer.ours);
  count_speed(state, rounds, layer, static_cast<double>(s.items), s.flop(), 0, 0);
  count(state, "speedup", rounds.ratio(plain, layer.ours));
}
BENCHMARK(layer_bf16)->Apply(all_targets);

/// Forward with everything kept, and backward with all gradients.
void train_bf16(benchmark::State& state) {
  const Shape s = Shape::of(state);
  LayerRun<Cpu> floats(plain_mixture(s), s.items);
  LayerRun<CpuBf16> halves(plain_mixture(s), s.items);
  const auto step = [](auto& run) {
    run.forward();
    run.backward();
  };
  step(floats);
  step(halves);
  Rounds rounds;
  const BetweenPeaks training(rounds, halves.ctx.threads(), [&] { step(halves); });
  const auto plain = rounds.time([&] { step(floats); });
  const auto forward = rounds.time([&] { halves.forward(); });
  run_rounds(state, rounds, training.ours);
  count_speed(state, rounds, training, static_cast<double>(s.items), 3 * s.flop(), 0, 0);
  count(state, "speedup", rounds.ratio(plain, training.ours));
  count(state, "train_over_forward", rounds.ratio(training.ours, forward));
}
BENCHMARK(train_bf16)->Apply(all_targets);

}  // namespace
