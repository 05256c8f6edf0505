#include <cstdio>
#include <memory>

#include "one_layer.cuh"

// Times one layer on a GPU. Compares the time with the limits of the device, with two dense float products that need as
// many operations as the experts, and with a loop of cuBLAS calls over the experts.
//
//   layer [WORD]   times only the shapes whose name contains WORD
namespace {

using namespace bench;

struct Activate {
  float* x;
  __device__ void operator()(Index i) const { x[i] = GeluTanh::value(x[i]); }
};

/// Computes the experts as a simple program would: gathers rows, and calls cuBLAS once for each matrix of each expert.
/// The offsets of the experts are read from the device before the clock starts.
struct BlasLoop {
  Run<>& run;
  std::vector<Index> offsets;
  Tensor<float, 2, Cuda> gathered, hidden, z;

  explicit BlasLoop(Run<>& r) : run(r) {
    const auto& plan = run.saved.calls[0].plan;
    offsets.resize(static_cast<std::size_t>(run.shape.experts) + 1);
    Cuda::to_host(run.ctx, Index(offsets.size()), plan.offsets.data(), offsets.data());
    gathered.resize(offsets.back(), run.shape.dim);
    hidden.resize(offsets.back(), run.shape.hidden);
    z.resize(offsets.back(), run.shape.dim);
  }
  void operator()() {
    const Shape& s = run.shape;
    Cuda::for_rows(run.ctx, offsets.back(),
                   functor::CarryRows<float, float, float, Cuda>{run.saved.calls[0].plan.rows, run.x, {}, gathered});
    product(gathered, run.params.branch.expert.up, hidden, s.dim, s.hidden);
    Cuda::for_each(run.ctx, hidden.size(), Activate{hidden.data()});
    product(hidden, run.params.branch.expert.down, z, s.hidden, s.dim);
    run.saved.calls[0].plan.combine(run.ctx, z, run.y);
  }

 private:
  void product(const Tensor<float, 2, Cuda>& a, const Tensor<float, 3, Cuda>& w, Tensor<float, 2, Cuda>& c, Index depth,
               Index columns) {
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      const Index first = offsets[e], rows = offsets[e + 1] - first;
      if (rows > 0)
        detail_::device::gemm(run.ctx, rows, columns, depth, a.data() + first * depth, false, depth,
                              w.data() + Index(e) * depth * columns, false, columns, false, c.data() + first * columns);
    }
  }
};

void one_layer(const Shape& s) {
  Run<> run(s);
  run.forward();
  Rounds rounds(run.ctx.stream());
  const Limits limits(run.ctx, rounds);
  const auto infer = rounds.add([&] { run.infer(); });
  const auto forward = rounds.add([&] { run.forward(); });
  const auto train = rounds.add([&] {
    run.forward();
    run.backward();
  });
  auto& saved = run.saved.calls[0];
  SparsePlan<float, Cuda> plan;
  const auto gate = rounds.add(
      [&] { infer_gate<float, Cuda>(run.layer.branch.gate, run.ctx, run.params.branch.gate, run.x, plan, {}); });
  Tensor<float, 2, Cuda> out(s.items, s.dim), z(s.items * s.picks, s.dim);
  const auto combine = rounds.add([&] { saved.plan.combine(run.ctx, z, out); });
  const auto experts = rounds.add([&] { run.infer_experts(run.params, z); });
  Run<> by_blas(s, {.blas_experts = true}), by_tf32(s, {.blas_experts = true, .tf32 = true});
  const auto blas_infer = rounds.add([&] {
    by_blas.infer();
    by_blas.ctx.synchronize();
  });
  const auto tf32_infer = rounds.add([&] {
    by_tf32.infer();
    by_tf32.ctx.synchronize();
  });
  Run<> for_graph(s);
  const Graph graph(for_graph.ctx, [&] { for_graph.infer(); });
  const auto replay = rounds.add([&] { graph.launch(run.ctx); });
  Run<> to_freeze(s);
  const auto rounded = freeze(to_freeze.ctx, std::move(to_freeze.params), {.weights = Weights::bfloat16});
  const auto bfloat16 = rounds.add([&] { run.infer(rounded); });
  BlasLoop blas(run);
  const auto loop = rounds.add([&] { blas(); });
  // Times two dense products, one after the other, with as many operations as the experts.
  const Index slots = s.items * s.picks;
  Tensor<float, 2, Cuda> rows(slots, s.dim), hidden(slots, s.hidden);
  fill(run.ctx, rows.view(), 0.5f);
  const auto dense = rounds.add([&] {
    const float* w = run.params.branch.expert.up.data();
    detail_::device::gemm(run.ctx, slots, s.hidden, s.dim, rows.data(), false, s.dim, w, false, s.hidden, false,
                          hidden.data());
    detail_::device::gemm(run.ctx, slots, s.dim, s.hidden, hidden.data(), false, s.hidden, w, false, s.dim, false,
                          z.data());
  });
  rounds.run();

  const double peak = limits.flops(rounds), bytes_per_second = limits.bandwidth(rounds);
  const auto us = [&](std::size_t i) { return rounds.median_of(i) * 1e6; };
  std::printf("%s: T %lld D %lld H %lld E %lld K %lld\n", s.name, (long long)s.items, (long long)s.dim,
              (long long)s.hidden, (long long)s.experts, (long long)s.picks);
  std::printf("  limits: %.1f TFLOP/s float, %.0f GB/s copied\n", peak * 1e-12, bytes_per_second * 1e-9);
  std::printf(
      "  infer %.1f us, %.2f TFLOP/s, share of peak %.3f; forward %.1f us; forward + backward %.1f us, over forward "
      "%.2f\n",
      us(infer), s.flop() / rounds.median_of(infer) * 1e-12, s.flop() / rounds.median_of(infer) / peak, us(forward),
      us(train), rounds.ratio(train, forward));
  std::printf(
      "  infer as a graph %.1f us; with cuBLAS's grouped product %.1f us, in TF32 %.1f us; bfloat16 weights %.1f us\n",
      us(replay), us(blas_infer), us(tf32_infer), us(bfloat16));
  std::printf("  gate %.1f us, experts %.1f us (share of peak %.3f), combine %.1f us (%.2f of bandwidth)\n", us(gate),
              us(experts), s.product_flop() / rounds.median_of(experts) / peak, us(combine),
              double(s.items * (s.picks + 1) * s.dim * 4) / rounds.median_of(combine) / bytes_per_second);
  std::printf(
      "  cuBLAS loop over experts (without gate) %.1f us, layer over it %.2f; dense cuBLAS %.1f us, experts over it "
      "%.2f\n",
      us(loop), rounds.ratio(infer, loop), us(dense), rounds.ratio(experts, dense));
  if (s.items <= 16) {
    const double used = double(std::min(s.experts, slots)) * 2 * double(s.dim * s.hidden) * 4;
    std::printf("  weights read at %.0f GB/s if %lld experts are used: %.2f of a copy's\n",
                used / rounds.median_of(infer) * 1e-9, (long long)std::min(s.experts, slots),
                used / rounds.median_of(infer) / bytes_per_second);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) { return for_named_shapes(argc, argv, kShapes, one_layer); }
