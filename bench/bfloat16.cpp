#include <string>
#include <utility>
#include <vector>

#include "gatefold/tensor/pack.hpp"
#include "support/beside.hpp"

// Times a mixture-of-experts layer whose experts multiply bfloat16 matrices (CpuBf16). Compares the times with the same
// layer in float (Cpu), and with layers whose bfloat16 products are computed by oneDNN and MKL.
namespace {

using namespace bench;

template <class B>
using LayerRun = Run<decltype(plain_mixture(Shape{})), float, B>;

std::vector<Bfloat16> rounded(const Tensor<float, 3, CpuBf16>& weights) {
  std::vector<Bfloat16> all;
  for (Index i = 0; i < weights.size(); ++i) all.push_back(Bfloat16::from(weights.data()[i]));
  return all;
}

/// Times inference with weights that every call rounds to bfloat16, and with frozen weights, which are rounded once,
/// like the weights of oneDNN and MKL.
void layer_bf16(benchmark::State& state) {
  const Shape s = Shape::of(state);
  LayerRun<Cpu> floats(plain_mixture(s), s.items);
  LayerRun<CpuBf16> halves(plain_mixture(s), s.items);
  const auto& branch = halves.params.branch;
  const auto up = rounded(branch.expert.up), down = rounded(branch.expert.down);
  const auto frozen = freeze(halves.ctx, init_params<float, CpuBf16>(halves.layer, halves.ctx, Seed{1}));

  Rounds rounds;
  const BetweenPeaks layer(rounds, halves.ctx.threads(), [&] { halves.infer(); });
  const auto plain = rounds.time([&] { floats.infer(); });
  const auto with_frozen = rounds.time(
      [&] { infer<float>(halves.layer, halves.ctx, frozen, halves.x, halves.carry, halves.y, halves.extra); });
  std::vector<std::pair<std::string, std::size_t>> entries;
  Tensor<float, 2, Cpu> y(s.items, s.dim);
  for (const auto& peer : present_peers<Bfloat16>()) {
    const auto theirs = peer_layer(peer, s);
    const auto forward = [&, theirs] {
      theirs->forward({branch.gate.scores.weight.data(), up.data(), down.data()}, halves.x.data(), y.data());
    };
    entries.emplace_back(peer.name, rounds.time(forward, peer.rest));
    expect_same_y(peer, y, halves);
  }
  run_rounds(state, rounds, layer.ours);
  count_speed(state, rounds, layer, static_cast<double>(s.items), s.flop(), 0, 0);
  count(state, "speedup", rounds.ratio(plain, layer.ours));
  count(state, "frozen_speedup", rounds.ratio(plain, with_frozen));
  for (const auto& [name, entry] : entries) {
    count(state, "peer_ratio_" + name, rounds.ratio(entry, layer.ours));
    count(state, "frozen_peer_ratio_" + name, rounds.ratio(entry, with_frozen));
  }
}
BENCHMARK(layer_bf16)->Apply(all_targets);

/// Times a training step of the layer: forward, then backward with all gradients.
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
