#include <cstddef>
#include <cstdio>

#include "bf16_dense.cuh"
#include "one_layer.cuh"

// Times layers of gated experts that multiply bfloat16 matrices, for the sizes that SonicMoE publishes. Also prints the
// device memory that a training step needs in addition to parameters, their bfloat16 copies, gradients and items.
//
//   gated [WORD]   times only the shapes whose name contains WORD
namespace {

using namespace bench;

constexpr Shape kGated[] = {
    {"wide", 32768, 4096, 2048, 64, 4},
    {"narrow", 32768, 768, 256, 128, 8},
    {"memory", 32768, 4096, 1024, 64, 4},
};

/// Returns the bytes of device memory in use.
std::size_t taken() {
  std::size_t free = 0, all = 0;
  detail_::device::expect_success(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return all - free;
}

void one_layer(const Shape& s) {
  using Expert = GatedMlp<Silu>;
  Run<CudaBf16, Expert> run(s);
  RoundedWeights<CudaBf16> copies;
  copies.refresh(run.ctx, run.params);
  run.ctx.synchronize();
  const std::size_t before = taken();
  const auto use = run.ctx.use(copies.packed);
  run.forward();
  run.ctx.synchronize();
  const std::size_t kept = taken();
  run.backward();
  run.ctx.synchronize();
  const std::size_t step_takes = taken();

  Rounds rounds(run.ctx.stream());
  const auto infer = rounds.add([&] { run.infer(); });
  const auto forward = rounds.add([&] { run.forward(); });
  const auto step = rounds.add([&] {
    run.forward();
    run.backward();
  });
  const Index slots = s.items * s.picks;
  Tensor<float, 2, CudaBf16> z(slots, s.dim);
  const auto experts = rounds.add([&] { run.infer_experts(run.params, z); });
  const auto rows = rounded(run.ctx, 4, slots, s.dim), up = rounded(run.ctx, 5, s.dim, 2 * s.hidden),
             down = rounded(run.ctx, 6, s.hidden, s.dim);
  Tensor<Bfloat16, 2, CudaBf16> both(slots, 2 * s.hidden), hidden(slots, s.hidden), out(slots, s.dim);
  const auto dense_products = rounds.add([&] {
    dense(run.ctx, slots, 2 * s.hidden, s.dim, rows, up, both);
    dense(run.ctx, slots, s.dim, s.hidden, hidden, down, out);
  });
  rounds.run(5);

  const double flop = 1.5 * s.product_flop();  // product_flop() counts two products; a gated expert has three
  const auto us = [&](std::size_t i) { return rounds.median_of(i) * 1e6; };
  const auto tflops = [&](std::size_t i) { return flop / rounds.median_of(i) * 1e-12; };
  constexpr double gib = 1.0 / (1 << 30);
  std::printf("%s: T %lld D %lld H %lld E %lld K %lld, gated\n", s.name, (long long)s.items, (long long)s.dim,
              (long long)s.hidden, (long long)s.experts, (long long)s.picks);
  std::printf("  infer %.1f us, forward %.1f us, forward + backward %.1f us\n", us(infer), us(forward), us(step));
  std::printf("  TFLOP/s: infer %.1f, forward %.1f, forward + backward %.1f, experts alone %.1f; dense cuBLAS %.1f\n",
              tflops(infer), tflops(forward), 3 * tflops(step), tflops(experts), tflops(dense_products));
  std::printf("  share of dense cuBLAS: experts %.2f\n", rounds.ratio(dense_products, experts));
  std::printf("  memory beside parameters, gradients, copies and items: %.2f GiB after forward, %.2f after backward\n",
              double(kept - before) * gib, double(step_takes - before) * gib);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) { return for_named_shapes(argc, argv, kGated, one_layer); }
