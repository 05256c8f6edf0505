#include <chrono>
#include <thread>
#include <vector>

#include "support/sampler.hpp"

// Times the batches of a server: few items at a time, on one and on two threads, and while another process keeps a core
// busy.
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

/// Times one more character of each of some sequences, with a KV cache.
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

}  // namespace
