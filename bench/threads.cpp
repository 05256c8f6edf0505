#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/busy.hpp"
#include "support/executors.hpp"
#include "support/layer.hpp"

// Times a small training loop with gatefold's threads, OpenMP and TBB, on idle cores and while other processes compete.
namespace {

using namespace bench;

/// Returns the trainer of the example program in the README.
auto small_training(Cpu::Context& ctx) {
  const Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},
                             Mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                                     Mlp<Gelu>{.model_dim = 32, .hidden_dim = 64}}},
                    4};
  return Trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}};
}
struct Training {
  template <class... A>
  explicit Training(A&... context) : ctx(context...) {}
  void step() { trainer.step(x, target); }

  Cpu::Context ctx;
  const Tensor<float, 2, Cpu> x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 256, 32),
                              target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 256, 32);
  decltype(small_training(ctx)) trainer = small_training(ctx);
};

/// Returns the seconds per training step while `busy` other processes compute. Measures for about `least` seconds.
double step_time(Training& training, int busy, double least) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets the previous executor's threads fall asleep
  const Busy others(busy);
  for (int i = 0; i < 3; ++i) training.step();
  const double begin = now();
  double end = begin;
  int steps = 0;
  for (; end - begin < least; end = now(), ++steps) training.step();
  return (end - begin) / steps;
}

void threads_train(benchmark::State& state) {
  const int busy = static_cast<int>(state.range(0)), threads = cpu::available_threads();
  struct Entry {
    std::string name;
    std::unique_ptr<Training> training;
    std::size_t quiet, loaded;
  };
  std::vector<Entry> entries;
  const auto add = [&](const std::string& name, auto&... context) {
    entries.push_back({name, std::make_unique<Training>(context...), 0, 0});
  };
  int one = 1, all = threads;
  add("", all);
#if defined(_OPENMP)
  OpenMp openmp;
  add("openmp_", openmp, all);
#endif
#if defined(GATEFOLD_BENCH_TBB)
  Tbb tbb;
  add("tbb_", tbb, all);
#endif
  add("one_thread_", one);

  Rounds rounds;
  for (Entry& e : entries) {
    e.quiet = rounds.measure([&] { return step_time(*e.training, 0, 0.1); });
    e.loaded = rounds.measure([&, busy] { return step_time(*e.training, busy, 0.3); });
  }
  run_rounds(state, rounds);
  for (const Entry& e : entries) {
    count(state, e.name + "loaded_over_quiet", rounds.ratio(e.loaded, e.quiet));
    count(state, e.name + "loaded_ms", 1e3 * rounds.median_of(e.loaded));
    if (e.name.empty()) continue;
    count(state, e.name + "quiet_over_ours", rounds.ratio(e.quiet, entries[0].quiet));
    count(state, e.name + "loaded_over_ours", rounds.ratio(e.loaded, entries[0].loaded));
  }
}
BENCHMARK(threads_train)
    ->ArgName("busy")
    ->Arg(1)
    ->Arg(3)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace
