// A grouped product as on Hopper: a producer loads tiles with tensor maps, and a warpgroup multiplies them with wgmma.
#include <cuda.h>
#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cuda/ptx>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/encoding.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

namespace ptx = cuda::ptx;

constexpr int tile = 64, stages = 2, group = 128, warp_threads = 32;

struct __align__(1024) Stages {
  __nv_bfloat16 a[stages][tile * tile];  // [row, k]
  __nv_bfloat16 b[stages][tile * tile];  // [k, column]
  std::uint64_t full[stages], empty[stages];
};

/// Returns the wgmma descriptor of a tile with a swizzle of 128 bytes. Groups of 8 lines are 1024 bytes apart.
__device__ std::uint64_t descriptor(const void* tile_in_shared) {
  const std::uint64_t address = __cvta_generic_to_shared(tile_in_shared);
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

/// D += A B with 64 rows, 64 columns and 16 terms. The terms of a row of A are contiguous, and so are the columns of B.
__device__ void multiply(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, "
      "1, 0, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

/// Block (x, y, e): a tile of C_e = A_e B_e.
static __global__ void __launch_bounds__(group + warp_threads)
    product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, int rows, int columns,
            int terms, float* c) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Stages& s = *reinterpret_cast<Stages*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      ptx::mbarrier_init(&s.full[i], 1);
      ptx::mbarrier_init(&s.empty[i], 1);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  const int row = blockIdx.y * tile, column = blockIdx.x * tile, expert = blockIdx.z;
  if (threadIdx.x >= group) {
    if (threadIdx.x != group) return;
    for (int k = 0, step = 0; k < terms; k += tile, ++step) {
      const int stage = step % stages;
      const std::uint32_t phase = step / stages % 2;
      while (!ptx::mbarrier_try_wait_parity(&s.empty[stage], phase ^ 1)) {
      }
      const std::int32_t of_a[3] = {k, row, expert}, of_b[3] = {column, k, expert};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, s.a[stage], &a, of_a, &s.full[stage]);
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, s.b[stage], &b, of_b, &s.full[stage]);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &s.full[stage],
                                     2 * tile * tile * 2);
    }
    return;
  }
  float d[32] = {};
  for (int k = 0, step = 0; k < terms; k += tile, ++step) {
    const int stage = step % stages;
    while (!ptx::mbarrier_try_wait_parity(&s.full[stage], step / stages % 2)) {
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < tile; i += 16) multiply(d, descriptor(&s.a[stage][i]), descriptor(&s.b[stage][i * tile]));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // The stage is empty only after all warps have waited.
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (threadIdx.x == 0) ptx::mbarrier_arrive(&s.empty[stage]);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = 0; i < 32; ++i) {
    const int r = row + 16 * warp + lane / 4 + 8 * (i / 2 % 2), n = column + 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    if (r < rows && n < columns) c[(std::size_t(expert) * rows + r) * columns + n] = d[i];
  }
}

CUtensorMap map_of(const Array<__nv_bfloat16>& tensor, cuuint64_t inner, cuuint64_t outer, cuuint64_t experts) {
  CUtensorMap map;
  REQUIRE(encode({.address = reinterpret_cast<std::uintptr_t>(tensor.data),
                  .extents = {inner, outer, experts},
                  .strides = {inner * 2, inner * outer * 2},
                  .box = {tile, tile, 1},
                  .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                 map) == CUDA_SUCCESS);
  return map;
}

/// Returns multiples of 1/8 from -1 to 1. Sums of their products are exact in float.
std::vector<__nv_bfloat16> numbers(std::size_t count, std::size_t seed) {
  std::vector<__nv_bfloat16> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(__float2bfloat16(static_cast<float>(static_cast<int>((i + seed) * 2654435761u % 17) - 8) / 8));
  }
  return values;
}

TEST_CASE("wgmma: multiplies tiles of tensor maps, with partial tiles") {
  constexpr int experts = 2, rows = 72, columns = 104, terms = 200;
  const auto a = numbers(experts * rows * terms, 3), b = numbers(experts * terms * columns, 11);
  const Array<__nv_bfloat16> device_a(a), device_b(b);
  const Array<float> device_c(std::vector<float>(experts * rows * columns));
  REQUIRE(cudaFuncSetAttribute(reinterpret_cast<const void*>(product), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Stages)) == cudaSuccess);
  product<<<dim3(2, 2, experts), group + warp_threads, sizeof(Stages)>>>(map_of(device_a, terms, rows, experts),
                                                                         map_of(device_b, columns, terms, experts),
                                                                         rows, columns, terms, device_c.data);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const auto c = device_c.host();
  int wrong = 0;
  for (int e = 0; e < experts; ++e) {
    for (int r = 0; r < rows; ++r) {
      for (int n = 0; n < columns; ++n) {
        double sum = 0;
        for (int k = 0; k < terms; ++k) {
          sum += static_cast<double>(__bfloat162float(a[(std::size_t(e) * rows + r) * terms + k])) *
                 __bfloat162float(b[(std::size_t(e) * terms + k) * columns + n]);
        }
        wrong += c[(std::size_t(e) * rows + r) * columns + n] != sum;
      }
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace gatefold::cuda_emulator
