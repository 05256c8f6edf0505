#include "support/layer.hpp"

// Times the routing between gate and experts: sorting the picks (pairs of item and expert) by expert, and summing the
// experts' outputs of each item.
namespace {

using namespace bench;

void plan_of(SparsePlan<float, Cpu>& plan, const Shape& s) {
  plan.resize(s.items, s.experts, s.items * s.picks);
  for (Index p = 0; p < plan.item.size(); ++p) {
    plan.item(p) = p / s.picks;
    const std::uint64_t first = mix64(static_cast<std::uint64_t>(p / s.picks)) >> 1;
    plan.expert(p) = (static_cast<Index>(first) % s.experts + p % s.picks) % s.experts;
    plan.weight(p) = 1.0f / static_cast<float>(s.picks);
  }
}
void routing_shapes(benchmark::internal::Benchmark* b) {
  shapes(
      b,
      {{4096, 512, 0, 8, 2}, {4096, 512, 0, 64, 2}, {8192, 64, 0, 64, 2}, {65536, 64, 0, 256, 2}, {16, 512, 0, 8, 2}});
}

void plan_build(benchmark::State& state) {
  const Shape s = Shape::of(state);
  Cpu::Context ctx = context();
  SparsePlan<float, Cpu> plan;
  plan_of(plan, s);
  Rounds rounds;
  rounds.time([&] { plan.build(ctx); });
  run_rounds(state, rounds);
  count(state, "picks_per_second", static_cast<double>(s.items * s.picks) / rounds.median_of(0));
}
BENCHMARK(plan_build)->Apply(routing_shapes);

/// Times combine, the weighted sum of the experts' outputs z for each item, and its backward. `bandwidth_share` is the
/// speed at which combine reads z, divided by the speed of a loop that only reads an array of this size.
void combine(benchmark::State& state) {
  const Shape s = Shape::of(state);
  Cpu::Context ctx = context();
  SparsePlan<float, Cpu> plan;
  plan_of(plan, s);
  plan.build(ctx);
  const auto z = uniform_tensor<float>(ctx, Seed{1}, 1, s.items * s.picks, s.dim);
  const auto du = uniform_tensor<float>(ctx, Seed{2}, 1, s.items, s.dim);
  Tensor<float, 2, Cpu> u(s.items, s.dim), dz(s.items * s.picks, s.dim);
  const double bytes = static_cast<double>(z.size()) * sizeof(float);
  const ReadBandwidth read(static_cast<std::size_t>(bytes));
  Rounds rounds;
  rounds.time([&] { plan.combine(ctx, z, u); });
  const auto backward = rounds.time([&] {
    auto mark = ctx.mark();
    auto dplan = plan.grad(ctx);
    plan.combine_backward(ctx, z, du, dz, dplan);
  });
  const auto bandwidth = rounds.measure([&] { return read(ctx.threads()); });
  run_rounds(state, rounds);
  count(state, "backward_ms", rounds.median_of(backward) * 1e3);
  count(state, "bytes_per_second", bytes / rounds.median_of(0));
  count(state, "bandwidth_share", rounds.median_over([&](auto of) { return bytes / of(0) / of(bandwidth); }));
}
BENCHMARK(combine)->Apply(routing_shapes);

}  // namespace
