#include <algorithm>
#include <cstdio>

#include "bf16_dense.cuh"
#include "one_layer.cuh"

// Times a mixture-of-experts layer whose experts multiply bfloat16 matrices on tensor cores. For comparison, also times
// dense bfloat16 products of cuBLAS.
//
//   bfloat16 [WORD]   times only the sizes whose name contains WORD
namespace {

using namespace bench;

void one_layer(const Shape& s) {
  Run<CudaBf16> run(s), to_freeze(s), for_graph(s);
  const auto frozen = freeze(to_freeze.ctx, std::move(to_freeze.params), {.weights = Weights::bfloat16});
  run.forward();
  Rounds rounds(run.ctx.stream());
  const auto infer = rounds.add([&] { run.infer(); });
  const auto of_frozen = rounds.add([&] { run.infer(frozen); });
  const Graph graph(for_graph.ctx, [&] { for_graph.infer(frozen); });
  const auto replay = rounds.add([&] { graph.launch(run.ctx); });
  const auto forward = rounds.add([&] { run.forward(); });
  const auto train = rounds.add([&] {
    run.forward();
    run.backward();
  });
  RoundedWeights<CudaBf16> copies;
  copies.refresh(run.ctx, run.params);
  const auto pass = rounds.add([&] { copies.refresh(run.ctx, run.params); });
  const auto part = rounds.add([&] {  // forward and backward with weights that are already rounded
    const auto use = run.ctx.use(copies.packed);
    run.forward();
    run.backward();
  });
  const auto step = rounds.add([&] {  // rounds the weights, then runs forward and backward, as in a training step
    copies.refresh(run.ctx, run.params);
    const auto use = run.ctx.use(copies.packed);
    run.forward();
    run.backward();
  });
  const Index slots = s.items * s.picks;
  Tensor<float, 2, CudaBf16> z(slots, s.dim);
  const auto experts = rounds.add([&] {
    const auto scope = run.ctx.use(frozen.packed);
    run.infer_experts(frozen.params, z);
  });
  const auto rows = rounded(run.ctx, 4, slots, s.dim), up = rounded(run.ctx, 5, s.dim, s.hidden),
             down = rounded(run.ctx, 6, s.hidden, s.dim);
  Tensor<Bfloat16, 2, CudaBf16> hidden(slots, s.hidden), out(slots, s.dim);
  const auto both = rounds.add([&] {
    dense(run.ctx, slots, s.hidden, s.dim, rows, up, hidden);
    dense(run.ctx, slots, s.dim, s.hidden, hidden, down, out);
  });
  rounds.run();

  const auto us = [&](std::size_t i) { return rounds.median_of(i) * 1e6; };
  const auto tflops = [&](std::size_t i, double times) {
    return times * s.product_flop() / rounds.median_of(i) * 1e-12;
  };
  std::printf("%s: T %lld D %lld H %lld E %lld K %lld\n", s.name, (long long)s.items, (long long)s.dim,
              (long long)s.hidden, (long long)s.experts, (long long)s.picks);
  std::printf(
      "  infer %.1f us, frozen %.1f us, as a graph %.1f us; forward %.1f us; forward + backward %.1f us (%.2f)\n",
      us(infer), us(of_frozen), us(replay), us(forward), us(train), rounds.ratio(train, forward));
  std::printf(
      "  forward + backward with copies of the weights rounded once %.1f us (%.2f), of a part that finds them %.1f us; "
      "one such rounding %.1f us\n",
      us(step), rounds.ratio(step, train), us(part), us(pass));
  std::printf("  TFLOP/s: frozen layer %.1f, experts alone %.1f, training %.1f; dense cuBLAS %.1f (%.1f us)\n",
              tflops(of_frozen, 1), tflops(experts, 1), tflops(train, 3), tflops(both, 1), us(both));
  std::printf("  share of dense cuBLAS: experts %.2f, frozen layer %.2f\n", rounds.ratio(both, experts),
              rounds.ratio(both, of_frozen));
  if (s.items <= 16)
    std::printf("  weights read at %.0f GB/s\n", double(std::min(s.experts, slots)) * 2 * double(s.dim * s.hidden) * 2 /
                                                     rounds.median_of(replay) * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) { return for_named_shapes(argc, argv, kShapes, one_layer); }
