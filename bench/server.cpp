#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/busy.hpp"
#include "support/sampler.hpp"

// Times small batches, as a server computes them, on one and on two threads. Also times such batches while another
// process keeps a core busy.
namespace {

using namespace bench;

/// Returns the median time of calls of f, each after a pause in which the threads of the pool fall asleep.
template <class F>
double time_after_pauses(const F& f) {
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double begin = now();
    f();
    times.push_back(now() - begin);
  }
  return median(times);
}
/// Times f[0], which runs on one thread, and f[1], which runs on two threads, in turn.
/// @param paused  whether there is a pause of 1 ms before each call
template <class F>
void one_and_two(benchmark::State& state, double items, F (&f)[2], bool paused) {
  Rounds rounds;
  std::size_t entries[2];
  for (int i = 0; i < 2; ++i)
    entries[i] = paused ? rounds.measure([of = f[i]] { return time_after_pauses(of); }) : rounds.time(f[i], 0, 1e-2);
  run_rounds(state, rounds, entries[1]);
  count(state, "items_per_s", items / rounds.median_of(entries[1]));
  count(state, "two_over_one", rounds.ratio(entries[0], entries[1]));
}

/// Times inference of one layer.
void server_layer(benchmark::State& state, bool paused) {
  const Shape s = Shape::of(state);
  using RunT = Run<decltype(plain_mixture(s))>;
  RunT one(plain_mixture(s), s.items, {}, 1), two(plain_mixture(s), s.items, {}, 2);
  const auto infer = [](RunT& run) { return [&run] { run.infer(); }; };
  decltype(infer(one)) both[]{infer(one), infer(two)};
  one_and_two(state, static_cast<double>(s.items), both, paused);
}
void layers(benchmark::internal::Benchmark* b) {
  for (const Shape& of : {Shape{0, 64, 128, 16, 2}, Shape{0, 256, 512, 8, 2}, Shape{0, 512, 2048, 8, 2}})
    for (Index items = 1; items <= 64; items *= 2) shapes(b, {{items, of.dim, of.hidden, of.experts, of.picks}});
}
BENCHMARK_CAPTURE(server_layer, steady, false)->Name("server_layer")->Apply(layers);
BENCHMARK_CAPTURE(server_layer, paused, true)->Name("server_layer_paused")->Apply(layers);

/// Times the generation of one more character for each of several sequences, with a KV cache.
void server_model(benchmark::State& state, bool paused) {
  const Index sequences = state.range(0);
  Sampler one(1, sequences), two(2, sequences);
  const auto token = one.ids(1);
  SegmentMemory<float, Cpu> memories[]{one.memory(), two.memory()};
  const auto next = [&](Sampler& sampler, SegmentMemory<float, Cpu>& memory) {
    sampler.read(sampler.ids(kCharacters.window), memory.of(kCharacters.window));
    memory.advance();
    return [&] {
      sampler.read(token, memory.of(1));
      memory.advance();
    };
  };
  decltype(next(one, memories[0])) both[]{next(one, memories[0]), next(two, memories[1])};
  one_and_two(state, static_cast<double>(sequences), both, paused);
}
void sequences(benchmark::internal::Benchmark* b) {
  timed(b);
  b->ArgName("sequences");
  for (Index count = 1; count <= 64; count *= 2) b->Arg(count);
}
BENCHMARK_CAPTURE(server_model, steady, false)->Name("server_model")->Apply(sequences);
BENCHMARK_CAPTURE(server_model, paused, true)->Name("server_model_paused")->Apply(sequences);

/// Times batches of 1 to 32 items, one after the other or after pauses of 1 ms, while other processes compute. All
/// numbers of items are equally frequent, so the 99th percentile is the time of a large batch.
void server_latency(benchmark::State& state) {
  const int busy = static_cast<int>(state.range(0));
  const bool paused = state.range(1) != 0;
  const double seconds = std::getenv("GATEFOLD_BENCH_FULL") ? 60 : quick() ? 1 : 3;
  constexpr Index most = 32;
  using RunT = Run<decltype(plain_mixture(Shape{}))>;
  const auto serve = [&](int threads) {
    std::vector<std::unique_ptr<RunT>> batches;
    for (Index items = 1; items <= most; ++items) {
      const Shape s{items, 512, 1024, 8, 2};
      batches.push_back(std::make_unique<RunT>(plain_mixture(s), items, Extra<RunT::Layer, float, Cpu>{}, threads));
      if (items > 1) batches.back()->params = clone(batches[0]->ctx, batches[0]->params);
      batches.back()->infer();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Busy others(busy);
    std::vector<double> times;
    Index next = 0;
    for (const double begin = now(); now() - begin < seconds;) {
      if (paused) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      next = (next + 7) % most;  // takes all batches in turn, because 7 and 32 have no common divisor
      const double start = now();
      batches[static_cast<std::size_t>(next)]->infer();
      times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  for (auto _ : state) {
    for (const int threads : {1, 2}) {
      const std::vector<double> times = serve(threads);
      const double half = median(times), late = times[times.size() * 99 / 100];
      const std::string name = threads == 1 ? "one_thread_" : "";
      count(state, name + "median_ms", 1e3 * half);
      count(state, name + "p99_over_median", late / half);
      count(state, name + "most_ms", 1e3 * times.back());
      state.SetIterationTime(half);
    }
  }
}
BENCHMARK(server_latency)->Apply(timed)->ArgNames({"busy", "paused"})->ArgsProduct({{0, 1}, {0, 1}});

}  // namespace
