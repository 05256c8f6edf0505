#include <fstream>
#include <string>

#include "support/allocations.hpp"
#include "support/layer.hpp"

// Measures the memory of training. Reports the number of allocations per step after the first step, the peak divided by
// the memory that training must hold, and the bytes that one layer saves for backward.
namespace {

using namespace bench;

/// Returns the largest resident size of this process in bytes, as the kernel reports it.
double peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

/// Kept returns the layer unchanged, so that its forward saves the values that backward needs. Recomputed returns the
/// layer in a Recompute, which computes these values again in backward.
struct Kept {
  static constexpr bool again = false;
  template <class L>
  L operator()(const L& layer) const {
    return layer;
  }
};
struct Recomputed {
  static constexpr bool again = true;
  template <class L>
  Recompute<L> operator()(const L& layer) const {
    return {layer};
  }
};

template <class RuleT, class FormT = Kept>
void memory(benchmark::State& state, RuleT rule, FormT form = {}) {
  const Shape s = Shape::of(state);
  constexpr Index kDepth = 6;
  Cpu::Context ctx = context();
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, s.items, s.dim);
  const auto target = uniform_tensor<float>(ctx, Seed{2}, 1, s.items, s.dim);
  const long before = heap::live;
  heap::restart_peak();
  std::ofstream("/proc/self/clear_refs") << 5;  // resets VmHWM
  Trainer trainer{ctx, Stack{form(Residual{rule, plain_mixture(s)}), kDepth}, MeanSquaredError{}, optim::AdamW{},
                  Seed{3}};
  trainer.step(x, target);
  const long first = heap::allocations;
  trainer.step(x, target);
  trainer.step(x, target);
  const double per_step = static_cast<double>(heap::allocations - first) / 2;
  const double held = static_cast<double>(heap::peak - before);
  Rounds rounds;
  rounds.time([&] { trainer.step(x, target); });
  run_rounds(state, rounds);

  // Training must hold the parameters, the gradients, two moments of the optimizer, the values that forward saves, the
  // scratch memory that backward of one layer needs, and the output.
  const double n = static_cast<double>(s.items), d = static_cast<double>(s.dim), h = static_cast<double>(s.hidden),
               e = static_cast<double>(s.experts), slots = n * static_cast<double>(s.picks);
  const double learned = 4 * static_cast<double>(count_values(trainer.params)) * sizeof(float);
  const double plan = (6 * slots + n + e) * sizeof(Index) + slots * sizeof(float);
  const double layer = (slots * h + 2 * n * e) * sizeof(float) + plan;
  const double stream = n * d * sizeof(float);  // output of one layer
  const double scratch = (slots * (d + 2 * h) + 3 * n * d + 3 * n * e) * sizeof(float);
  Carry<RuleT, float, Cpu> carry;
  if constexpr (requires { rule.begin(ctx, s.items, s.dim, carry); }) rule.begin(ctx, s.items, s.dim, carry);
  const double carried = static_cast<double>(count_values(carry)) * sizeof(float);
  // With recomputation, backward holds the saved values of one layer, the carry (state of the update rule) before each
  // layer, and the carry and output of the layer that is recomputed.
  const double kept = (kDepth - 1) * stream + (FormT::again ? layer + (kDepth + 1) * carried + stream : kDepth * layer);
  const double sum = learned + kept + scratch + 3 * stream + carried;
  count(state, "allocations_per_step", per_step);
  count(state, "peak_bytes", held);
  const long live = heap::live;
  trainer.saved = {};
  count(state, "kept_bytes", static_cast<double>(live - heap::live));
  count(state, "peak_over_sum", held / sum);
  count(state, "peak_resident", peak_resident());
}
void stacks(benchmark::internal::Benchmark* b) { shapes(b, {{4096, 352, 352, 16, 2}, {1024, 512, 2048, 8, 2}}); }
BENCHMARK_CAPTURE(memory, Plain, update::Plain{})->Apply(stacks);
BENCHMARK_CAPTURE(memory, HeavyBall, update::HeavyBall{})->Apply(stacks);
BENCHMARK_CAPTURE(memory, PlainRecomputed, update::Plain{}, Recomputed{})->Apply(stacks);
BENCHMARK_CAPTURE(memory, HeavyBallRecomputed, update::HeavyBall{}, Recomputed{})->Apply(stacks);
BENCHMARK_CAPTURE(memory, AdamFirst, update::First{update::Adam{}, update::HeavyBall{}})->Apply(stacks);

/// Reports the bytes that a mixture saves for backward, in total and per slot (pair of item and expert). Also reports
/// the bytes of an expert's output for one slot, for comparison.
template <class E>
void kept(benchmark::State& state, E (*expert_of)(const Shape&)) {
  const Shape s = Shape::of(state);
  Run run(Mixture{plain_gate(s), expert_of(s)}, s.items);
  Rounds rounds;
  rounds.time([&] { run.forward(); });
  run_rounds(state, rounds);
  const long before = heap::live;
  run.saved = {};
  const double bytes = static_cast<double>(before - heap::live), slots = static_cast<double>(s.items * s.picks);
  count(state, "kept_bytes", bytes);
  count(state, "kept_of_slot", bytes / slots);
  count(state, "outputs_of_slot", static_cast<double>(s.dim) * sizeof(float));
}
BENCHMARK_CAPTURE(kept, Mlp, plain_expert)->Apply(stacks);
BENCHMARK_CAPTURE(
    kept, GatedMlp, +[](const Shape& s) { return GatedMlp<Silu>{.model_dim = s.dim, .hidden_dim = s.hidden}; })
    ->Apply(stacks);
BENCHMARK_CAPTURE(
    kept, Linear, +[](const Shape& s) { return Linear{.model_dim = s.dim}; })
    ->Apply(stacks);

}  // namespace
