#include "support/layer.hpp"

// Times losses and optimizers. The counter `reads` is the time divided by the time to read one of the operands from
// memory: the model outputs of a loss, or the parameters of an optimizer.
namespace {

using namespace bench;

void count_reads(benchmark::State& state, Rounds& rounds, const Cpu::Context& ctx, Index values) {
  const double bytes = static_cast<double>(values) * sizeof(float);
  const ReadBandwidth read;
  const auto bandwidth = rounds.measure([&] { return read(ctx.threads()); });
  run_rounds(state, rounds);
  count(state, "reads", rounds.median_over([&](auto of) { return of(0) * of(bandwidth) / bytes; }));
}

/// Times forward and backward of a loss on model outputs y [N, O].
template <class LossT, class TargetT>
void time_loss(benchmark::State& state, const LossT& loss, Index items, Index outputs, const TargetT& target) {
  Cpu::Context ctx = context();
  const auto y = uniform_tensor<float>(ctx, Seed{1}, 3, items, outputs);
  Tensor<float, 2, Cpu> dy(items, outputs);
  Tensor<float, 1, Cpu> value(1);
  Rounds rounds;
  rounds.time([&] {
    forward(loss, ctx, y, target, value);
    backward(loss, ctx, y, target, dy);
  });
  count_reads(state, rounds, ctx, y.size());
}
void cross_entropy(benchmark::State& state) {
  Tensor<Index, 1, Cpu> target(1024);
  for (Index n = 0; n < target.size(); ++n) target(n) = n * 7;
  time_loss(state, CrossEntropy{}, target.size(), 8192, target);
}
void mean_squared_error(benchmark::State& state) {
  Cpu::Context ctx = context();
  time_loss(state, MeanSquaredError{}, 4096, 512, uniform_tensor<float>(ctx, Seed{2}, 1, 4096, 512));
}
BENCHMARK(cross_entropy)->Name("loss/CrossEntropy")->Apply(timed);
BENCHMARK(mean_squared_error)->Name("loss/MeanSquaredError")->Apply(timed);

template <class OptimizerT>
void optimizer(benchmark::State& state, OptimizerT policy) {
  const Shape s{1, 352, 352, 16, 2};
  Run run(plain_mixture(s), s.items);
  run.forward();
  run.backward();
  auto of_params = policy.begin(run.ctx, run.params);
  Rounds rounds;
  rounds.time([&] { policy.step(run.ctx, run.params, run.grads, of_params); });
  count_reads(state, rounds, run.ctx, count_values(run.params));
}
BENCHMARK_CAPTURE(optimizer, Sgd, optim::Sgd{})->Apply(timed);
BENCHMARK_CAPTURE(optimizer, AdamW, optim::AdamW{})->Apply(timed);
BENCHMARK_CAPTURE(optimizer, ClippedAdamW, optim::Clipped{optim::AdamW{}, 1.0})->Apply(timed);

}  // namespace
