#include <memory>

#include "support/beside.hpp"

// Times one mixture-of-experts layer for the sizes that have a performance goal (GOALS in bench/table.py).
namespace {

using namespace bench;

/// Times inference, compared with the machine's peak and with other libraries. Also times the routing.
void layer_forward(benchmark::State& state) {
  const Shape s = Shape::of(state);
  Run run(plain_mixture(s), s.items);
  const int threads = run.ctx.threads();

  Rounds rounds;
  const BetweenPeaks layer(rounds, threads, [&] { run.infer(); });
  const Routing routing = add_routing(rounds, run);
  const auto entries = add_peers(rounds, s, run);
  const double bytes = weight_bytes(s, run);
  const ReadBandwidth read(static_cast<std::size_t>(bytes));
  const auto bandwidth = rounds.measure([&] { return read(threads); });

  run_rounds(state, rounds, layer.ours);
  count_speed(state, rounds, layer, static_cast<double>(s.items), s.flop(), s.items <= 16 ? bytes : 0, bandwidth);
  count_peers(state, rounds, entries, layer.ours);
  count(state, "routing_share", routing.over(rounds, layer.ours));
  count(state, "gate_share", rounds.ratio(routing.parts[0], layer.ours));
}
/// Registers sizes with a few items per expert. These are more items than in decoding, but a thread still has little
/// work for each block of weights.
void some_rows(benchmark::internal::Benchmark* b) {
  shapes(b, {{64, 512, 2048, 8, 2}, {128, 512, 2048, 8, 2}, {64, 352, 352, 16, 2}, {256, 352, 352, 16, 2}});
}
BENCHMARK(layer_forward)->Apply(all_targets)->Apply(some_rows);

/// Times decoding of 1 or 16 items with weights that are in no cache.
void layer_decode(benchmark::State& state) {
  const Shape s = Shape::of(state);
  auto copies = cold_copies<Run<decltype(plain_mixture(s))>>(s);
  Rounds rounds;
  const BetweenPeaks layers(rounds, copies.ctx().threads(), [&] { copies.infer(); });
  const Routing routing = add_routing(rounds, *copies.runs[0]);
  const auto entries = add_cold_peers(rounds, s, copies.runs);
  count_decoding(state, rounds, s, copies, layers, routing, copies.bytes);
  count_peers(state, rounds, entries, layers.ours);
}
BENCHMARK(layer_decode)->Apply(decoding);

/// Times a training step of the layer: forward, then backward with all gradients.
void layer_train(benchmark::State& state) {
  const Shape s = Shape::of(state);
  Run run(plain_mixture(s), s.items);
  run.forward();
  Rounds rounds;
  const BetweenPeaks training(rounds, run.ctx.threads(), [&] {
    run.forward();
    run.backward();
  });
  const auto forward = rounds.time([&] { run.forward(); });
  const auto infer = rounds.time([&] { run.infer(); });
  const Routing routing = add_training_routing(rounds, run);

  run_rounds(state, rounds, training.ours);
  count_speed(state, rounds, training, static_cast<double>(s.items), 3 * s.flop(), 0, 0);
  count(state, "forward_peak_share", training.share(rounds, s.flop(), forward));
  count(state, "routing_share", routing.over(rounds, training.ours));
  count(state, "train_over_forward", rounds.ratio(training.ours, forward));
  count(state, "forward_over_infer", rounds.ratio(forward, infer));
}
BENCHMARK(layer_train)->Apply(all_targets);

/// Times a batch whose items all go to the same K experts, compared with evenly spread items, which need the same
/// arithmetic.
void layer_skew(benchmark::State& state) {
  const Shape s = Shape::of(state);
  const Mixture mixture{plain_gate(s, true), plain_expert(s)};
  Run even(mixture, s.items), skewed(mixture, s.items);
  for (Index e = 0; e < s.picks; ++e) skewed.params.branch.gate.scores.bias(e) = 30;
  Rounds rounds;
  rounds.time([&] { skewed.infer(); });
  const auto uniform = rounds.time([&] { even.infer(); });
  run_rounds(state, rounds);
  count(state, "skew_over_uniform", rounds.ratio(0, uniform));
}
BENCHMARK(layer_skew)->Apply([](auto* b) {
  shapes(b, {{4096, 512, 2048, 8, 1}, {4096, 512, 2048, 8, 2}, {4096, 352, 352, 16, 1}, {8192, 64, 128, 64, 1}});
});

/// Times a layer on all threads, compared with one thread.
void layer_threads(benchmark::State& state) {
  const Shape s = Shape::of(state);
  Run all(plain_mixture(s), s.items), one(plain_mixture(s), s.items, {}, 1);
  Rounds rounds;
  rounds.time([&] { all.infer(); });
  const auto single = rounds.time([&] { one.infer(); });
  const auto peak_all = add_peak(rounds, all.ctx.threads()), peak_one = add_peak(rounds, 1);
  run_rounds(state, rounds);
  count(state, "speedup", rounds.ratio(single, 0));
  count(state, "fma_speedup", rounds.ratio(peak_all, peak_one));  // speedup of multiply-adds in registers
}
BENCHMARK(layer_threads)->Apply([](auto* b) {
  shapes(b, {{4096, 512, 2048, 8, 2}, {4096, 352, 352, 16, 2}, {8192, 64, 128, 64, 2}});
});

}  // namespace
