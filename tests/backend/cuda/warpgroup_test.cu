// One product of a warpgroup: 64 × 16 by 16 × 256 values that a box copy brought to shared memory.
#include "gatefold/backend/cuda/warpgroup.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cuda/tensor_core.cuh"
#include "gatefold/backend/cuda/tensor_map.cuh"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

struct Maps {
  CUtensorMap a, b;
};

/// Computes c = Σ a b over the depth 16 · `steps`. a is in one box, b in four boxes.
template <bool A, bool B>
static __global__ void __launch_bounds__(128) one_product(const __grid_constant__ Maps maps, int steps, float* c) {
#if GATEFOLD_SM_90A
  extern __shared__ unsigned char memory[];
  const std::uint32_t shared = (shared_address(memory) + 1023) / 1024 * 1024;
  const Barrier full{shared + 5 * kBoxBytes};
  if (threadIdx.x == 0) {
    full.init(1);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    full.arrive_and_expect(5 * kBoxBytes);
    copy_box(shared, &maps.a, 0, 0, 0, full);
    for (int box = 0; box < 4; ++box)
      copy_box(shared + (1 + box) * kBoxBytes, &maps.b, B ? 64 * box : 0, B ? 0 : 64 * box, 0, full);
  }
  full.wait(0);
  float sum[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sum[i] = 0;
  begin_products();
  for (int k = 0; k < steps; ++k)
    add_product<A, B>(sum, matrix_descriptor(shared, A ? kBoxBytes : 16) + k * (A ? 128 : 2),
                      matrix_descriptor(shared + kBoxBytes, B ? kBoxBytes : 16) + k * (B ? 128 : 2), k > 0);
  commit_products();
  wait_for_sums(sum);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 128; ++i)
    c[(16 * warp + lane / 4 + i / 2 % 2 * 8) * 256 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sum[i];
#endif
}

/// Checks a [64, 64] and b [64, 256] of small whole numbers, each as it is or transposed.
template <bool A, bool B>
void check(int steps) {
  Cuda::Context ctx;
  const auto a = test::random_integers(64 * 64, -4, 9, 1), b = test::random_integers(64 * 256, -4, 9, 2);
  const auto rounded = [](const std::vector<Index>& v) {
    std::vector<Bfloat16> to;
    for (const Index x : v) to.push_back(Bfloat16::from(static_cast<float>(x)));
    return to;
  };
  test::DeviceArray<Bfloat16> on_a(ctx, rounded(a)), on_b(ctx, rounded(b));
  test::DeviceArray<float> c(ctx, std::vector<float>(64 * 256, -77));
  const Maps maps{tensor_map(on_a.data(), 64, 64, 64, 1, 4096),
                  B ? tensor_map(on_b.data(), 256, 256, 64, 1, 16384) : tensor_map(on_b.data(), 64, 64, 256, 1, 16384)};
  const int bytes = 5 * kBoxBytes + 1024 + 8;
  REQUIRE(cudaFuncSetAttribute(one_product<A, B>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess);
  one_product<A, B><<<1, 128, bytes, ctx.stream()>>>(maps, steps, c.data());
  expect_launched("one_product");
  std::vector<float> expected(64 * 256);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 256; ++j)
      for (int k = 0; k < 16 * steps; ++k)
        expected[static_cast<std::size_t>(i * 256 + j)] +=
            static_cast<float>(a[static_cast<std::size_t>(A ? k * 64 + i : i * 64 + k)] *
                               b[static_cast<std::size_t>(B ? k * 256 + j : j * 64 + k)]);
  CHECK(test::difference(expected, c.values()) == "");
}

}  // namespace

TEST_CASE("cuda: warpgroup: multiplies plain and transposed boxes") {
  REQUIRE(device_code() == DeviceCode::hopper);
  for (const int steps : {1, 4}) {
    check<false, false>(steps);
    check<false, true>(steps);
    check<true, false>(steps);
    check<true, true>(steps);
  }
}
