// ldmatrix and mma as a warp sees them: whole products of 16 × 8 sums.
#include "gatefold/backend/cuda/tensor_core.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/core/bfloat16.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Computes c = a b. a is [16, 16], transposed if A; b is [16, 8], or [8, 16] if B.
template <bool A, bool B>
static __global__ void one_product(const Bfloat16* a, const Bfloat16* b, float* c) {
  __shared__ __align__(16) Bfloat16 of_a[16][16], of_b[16][16];
  for (int i = threadIdx.x; i < 256; i += 32) of_a[i / 16][i % 16] = a[i];
  constexpr int width = B ? 16 : 8;
  for (int i = threadIdx.x; i < 128; i += 32) of_b[i / width][i % width] = b[i];
  __syncthreads();
  const int lane = threadIdx.x, low = lane % 8, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
  std::uint32_t from_a[4], from_b[4];
  detail_::device::load_matrices<A>(
      from_a, detail_::device::shared_address(A ? &of_a[low + third][second] : &of_a[low + second][third]));
  // b has depth 16 and 8 columns. load_matrices loads 16 columns, so it loads the same matrices twice.
  detail_::device::load_matrices<!B>(from_b,
                                     detail_::device::shared_address(B ? &of_b[low][second] : &of_b[low + second][0]));
  float sum[4] = {1, 2, 3, 4};
  detail_::device::multiply_add(sum, from_a, from_b[0], from_b[1]);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i] - static_cast<float>(i + 1);
}

template <bool A, bool B>
void check() {
  Cuda::Context ctx;
  const auto a = random_integers(256, -8, 17, 1), b = random_integers(128, -8, 17, 2);
  std::vector<float> expected(128);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      for (int k = 0; k < 16; ++k)
        expected[static_cast<std::size_t>(i * 8 + j)] +=
            static_cast<float>(a[static_cast<std::size_t>(A ? k * 16 + i : i * 16 + k)] *
                               b[static_cast<std::size_t>(B ? j * 16 + k : k * 8 + j)]);
  std::vector<Bfloat16> of_a, of_b;
  for (const Index v : a) of_a.push_back(Bfloat16::from(static_cast<float>(v)));
  for (const Index v : b) of_b.push_back(Bfloat16::from(static_cast<float>(v)));
  DeviceArray<Bfloat16> on_a(ctx, of_a), on_b(ctx, of_b);
  DeviceArray<float> c(ctx, std::vector<float>(128));
  one_product<A, B><<<1, 32, 0, ctx.stream()>>>(on_a.data(), on_b.data(), c.data());
  detail_::device::expect_launched("one_product");
  CHECK(difference(expected, c.values()) == "");
}

}  // namespace

TEST_CASE("cuda: tensor core: a warp multiplies plain and transposed matrices") {
  check<false, false>();
  check<false, true>();
  check<true, false>();
  check<true, true>();
}
