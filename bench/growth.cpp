#include "support/routing.hpp"

// Measures how the time of a layer grows with one size while the others are constant. The time of the experts is the
// time of the layer minus the time of the gate. The script growth.gp draws the results, which are named
// growth/<curve>/<letter>:<value>.
namespace {

using namespace bench;

void point(benchmark::State& state, const Shape& s, int threads) {
  Run run(plain_mixture(s), s.items, {}, threads);
  run.forward();
  Rounds rounds;
  rounds.time([&] { run.infer(); });
  const auto gate = rounds.time(GateRun<decltype(run)>{run});
  const auto peak = add_peak(rounds, run.ctx.threads());
  run_rounds(state, rounds);
  count(state, "gate_ms", rounds.median_of(gate) * 1e3);
  count(state, "experts_ms", rounds.median_over([&](auto of) { return of(0) - of(gate); }) * 1e3);
  count(state, "peak_share", rounds.median_over([&](auto of) { return s.flop() / of(0) / of(peak); }));
}

const bool registered = [] {
  const auto add = [](const char* curve, const char* letter, Index value, const Shape& s, int threads = 0) {
    const std::string name = std::string("growth/") + curve + '/' + letter + ':' + std::to_string(value);
    timed(benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { point(state, s, threads); }));
  };
  for (Index n : {1, 4, 16, 64, 256, 1024, 4096, 16384}) add("tokens", "T", n, {n, 352, 352, 16, 2});
  for (Index n : {8, 16, 32, 64, 128, 256}) add("experts", "E", n, {4096, 256, 256, n, 2});
  for (Index n : {1, 2, 4, 8, 16}) add("picks", "K", n, {1024, 352, 352, 16, n});
  for (Index n : {64, 128, 256, 512, 1024}) add("model_dim", "D", n, {1024, n, 512, 8, 2});
  for (Index n : {64, 128, 256, 512, 1024, 2048}) add("hidden_dim", "H", n, {1024, 512, n, 8, 2});
  for (int n = 1; n <= cpu::available_threads(); ++n) add("threads", "threads", n, {4096, 352, 352, 16, 2}, n);
  return true;
}();

}  // namespace
