#include "support/beside.hpp"

// Times inference with frozen (packed) weights, in float and in bfloat16. Compares the times with other libraries, and
// with the same layer without frozen weights.
namespace {

using namespace bench;

/// Times inference with frozen weights that are in the caches.
void layer_frozen(benchmark::State& state, bool bfloat16) {
  const Shape s = Shape::of(state);
  Run run(plain_mixture(s), s.items);
  const auto frozen = frozen_copy(run, bfloat16);
  Rounds rounds;
  const BetweenPeaks layer(rounds, run.ctx.threads(),
                           [&] { infer<float>(run.layer, run.ctx, frozen, run.x, run.carry, run.y, run.extra); });
  const auto plain = rounds.time([&] { run.infer(); });
  const Routing routing = add_routing(rounds, run);
  const auto entries = add_peers(rounds, s, run);
  const double bytes = weight_bytes(s, run) * (bfloat16 ? 0.5 : 1);
  const ReadBandwidth read(static_cast<std::size_t>(bytes));
  const auto bandwidth = rounds.measure([&] { return read(run.ctx.threads()); });
  run_rounds(state, rounds, layer.ours);
  count_speed(state, rounds, layer, static_cast<double>(s.items), s.flop(), s.items <= 16 ? bytes : 0, bandwidth);
  count(state, "routing_share", routing.over(rounds, layer.ours));
  count(state, "speedup", rounds.ratio(plain, layer.ours));  // speedup over the layer without frozen weights
  count_peers(state, rounds, entries, layer.ours);
}
BENCHMARK_CAPTURE(layer_frozen, f32, false)->Name("layer_frozen")->Apply(all_targets);
BENCHMARK_CAPTURE(layer_frozen, bf16, true)->Name("layer_frozen_bf16")->Apply(all_targets);

/// Times decoding of a few items with frozen weights that are in no cache.
void decode_frozen(benchmark::State& state, bool bfloat16) {
  const Shape s = Shape::of(state);
  using RunT = Run<decltype(plain_mixture(s))>;
  const auto copies = cold_copies<RunT>(s);
  std::vector<decltype(frozen_copy(*copies.runs[0], bfloat16))> frozen;
  for (const auto& run : copies.runs) frozen.push_back(frozen_copy(*run, bfloat16));
  const double bytes = copies.bytes * (bfloat16 ? 0.5 : 1);
  Rounds rounds;
  const BetweenPeaks layers(rounds, copies.ctx().threads(), [&] {
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      RunT& run = *copies.runs[i];
      infer<float>(run.layer, copies.ctx(), frozen[i], run.x, run.carry, run.y, run.extra);
    }
  });
  const auto plain = rounds.time([&] { copies.infer(); });
  const auto entries = add_cold_peers(rounds, s, copies.runs);
  const Routing routing = add_routing(rounds, *copies.runs[0]);
  count_decoding(state, rounds, s, copies, layers, routing, bytes);
  count(state, "speedup", rounds.ratio(plain, layers.ours));
  count_peers(state, rounds, entries, layers.ours);
}
BENCHMARK_CAPTURE(decode_frozen, f32, false)->Name("decode_frozen")->Apply(decoding);
BENCHMARK_CAPTURE(decode_frozen, bf16, true)->Name("decode_frozen_bf16")->Apply(decoding);

}  // namespace
