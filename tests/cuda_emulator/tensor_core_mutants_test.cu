// Seeded mistakes in kernels on tensor cores, which multiply matrices of small integers exactly by mma and wgmma. As in
// mutants_test.cu, each mistake must be caught, and without a mistake the same check must pass.
#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/mutant.hpp"

namespace gatefold::cuda_emulator {

enum class Mutation {
  none,
  missing_barrier,
  not_transposed,
  rows_of_another_lane,
  exchanged_registers,
  half_a_warp,
  no_proxy_fence,
  proxy_fence_too_early,
  no_register_fence,
  no_product_wait,
  waits_for_one_less,
  copies_not_awaited,
  no_swizzle,
  wrong_stride,
  wrong_leading,
  three_warps,
  one_arrival_too_many,
  consumer_does_not_wait,
  producer_does_not_wait,
  released_too_early,
};
using enum Mutation;

namespace {

// C [m, n] = A B. A is stored as [m, k] if a_k_major, otherwise as [k, m]. B is stored as [n, k] if b_k_major,
// otherwise as [k, n].
struct Problem {
  int m, n, k;
  bool a_k_major, b_k_major;

  std::vector<float> random(int count, unsigned seed) const {
    std::mt19937 generator(seed);
    std::uniform_int_distribution<int> integer(-4, 4);
    std::vector<float> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(integer(generator)));
    return numbers;
  }
  static std::vector<__nv_bfloat16> rounded(const std::vector<float>& numbers) {
    return {numbers.begin(), numbers.end()};
  }

  // Returns whether the kernel writes the C that naive loops compute.
  template <class Launch>
  bool right(Launch launch) const {
    const std::vector<float> a = random(m * k, 1), b = random(k * n, 2);
    const Array<__nv_bfloat16> a_device(rounded(a)), b_device(rounded(b));
    const Array<float> c(not_initialised, static_cast<std::size_t>(m * n));
    launch(a_device.data, b_device.data, c.data);
    const std::vector<float> got = c.host();
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < n; ++column) {
        float sum = 0;
        for (int i = 0; i < k; ++i) {
          sum += a[a_k_major ? row * k + i : i * m + row] * b[b_k_major ? column * k + i : i * n + column];
        }
        if (got[row * n + column] != sum) return false;
      }
    }
    return true;
  }
};

__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ void copy_16_bytes(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// ----------------------------------------------------------------------------------------------------------------- mma

// A block of two warps for 32 rows and 8 columns, 16 k at a time. A [m, k], B [k, n].
template <Mutation mutation>
__global__ void by_mma(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int n, int k) {
  __shared__ __align__(16) __nv_bfloat16 a_tile[32][24], b_tile[16][8];  // rows of 48 bytes have different banks
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row = static_cast<int>(blockIdx.x) * 32, column = static_cast<int>(blockIdx.y) * 8;
  float d[4] = {};
  for (int begin = 0; begin < k; begin += 16) {
    copy_16_bytes(shared_address(&a_tile[thread / 2][thread % 2 * 8]),
                  &a[(row + thread / 2) * k + begin + thread % 2 * 8]);
    if (thread < 16) copy_16_bytes(shared_address(b_tile[thread]), &b[(begin + thread) * n + column]);
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (mutation != missing_barrier) __syncthreads();
    std::uint32_t x[4], y[2];
    const int a_row = mutation == rows_of_another_lane ? lane / 2 : lane % 16, a_column = lane / 16 * 8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(&a_tile[16 * warp + a_row][a_column])));
    if (mutation == not_transposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                   : "=r"(y[0]), "=r"(y[1])
                   : "r"(shared_address(b_tile[lane % 16])));
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                   : "=r"(y[0]), "=r"(y[1])
                   : "r"(shared_address(b_tile[lane % 16])));
    }
    constexpr int second = mutation == exchanged_registers ? 2 : 1;
    if (mutation != half_a_warp || lane < 16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(x[0]), "r"(x[second]), "r"(x[3 - second]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    c[(row + 16 * warp + lane / 4 + i / 2 * 8) * n + column + lane % 4 * 2 + i % 2] = d[i];
  }
}

struct Mma {
  template <Mutation mutation>
  bool operator()() const {
    const Problem problem{64, 24, 48, true, false};
    return problem.right([&](const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
      by_mma<mutation><<<dim3(2, 3), 64>>>(a, b, c, problem.n, problem.k);
    });
  }
};

TEST_CASE("mma: reports a missing barrier between copies and ldmatrix") {
  expect_report<missing_barrier>(Mma{}, "^data race: shared load of 16 bytes .*ldmatrix.* not ordered with .*cp.async");
}
TEST_CASE("mma: detects that B is not transposed") { expect_wrong_value<not_transposed>(Mma{}); }
TEST_CASE("mma: detects lanes that pass wrong row addresses") { expect_wrong_value<rows_of_another_lane>(Mma{}); }
TEST_CASE("mma: detects two exchanged registers of A") { expect_wrong_value<exchanged_registers>(Mma{}); }
TEST_CASE("mma: reports that only half of the warp takes part") {
  expect_report<half_a_warp>(Mma{}, "^deadlock: of 64 threads 32 wait at a barrier and 32 in a warp .*: mma.sync");
}

// --------------------------------------------------------------------------------------------------------------- wgmma

constexpr int rows = 64, columns = 128, depth = 64;  // of a tile
constexpr int part = 64 * 64;                        // a tile has one or two parts of 64 rows of 128 bytes

struct Tile {
  __nv_bfloat16 a[part], b[2 * part];
};

// 128 threads copy 64 rows of 64 numbers, swizzled: chunk c of 16 bytes in row r is stored at c ^ r.
template <Mutation mutation>
__device__ void copy_part(__nv_bfloat16* to, const __nv_bfloat16* from, int leading_dimension) {
  for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * 8; i += 128) {
    const int row = i / 8, sixteenth = i % 8, place = mutation == no_swizzle ? sixteenth : sixteenth ^ (row % 8);
    copy_16_bytes(shared_address(to + row * 64 + place * 8), from + row * leading_dimension + sixteenth * 8);
  }
}

struct Operands {
  const __nv_bfloat16 *a, *b;
  int m, n, k;
};

template <Mutation mutation, bool a_k_major, bool b_k_major>
__device__ void copy_tile(Tile& tile, const Operands& of, int row, int column, int begin) {
  if (a_k_major) {
    copy_part<mutation>(tile.a, of.a + row * of.k + begin, of.k);
  } else {
    copy_part<mutation>(tile.a, of.a + begin * of.m + row, of.m);
  }
  for (int i = 0; i < 2; ++i) {
    if (b_k_major) {
      copy_part<mutation>(tile.b + i * part, of.b + (column + 64 * i) * of.k + begin, of.k);
    } else {
      copy_part<mutation>(tile.b + i * part, of.b + begin * of.n + column + 64 * i, of.n);
    }
  }
}

// Returns the wgmma descriptor of a matrix with the swizzle of 128 bytes. 8 rows are 1024 bytes.
template <Mutation mutation>
__device__ std::uint64_t matrix(const __nv_bfloat16* numbers) {
  constexpr std::uint64_t stride = mutation == wrong_stride ? 512 : 1024;
  constexpr std::uint64_t leading = mutation == wrong_leading ? 1024 : part * 2;
  return (shared_address(numbers) & 0x3ffff) >> 4 | leading / 16 << 16 | stride / 16 << 32 | std::uint64_t{1} << 62;
}

template <bool a_k_major, bool b_k_major>
__device__ void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, %66, %67;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "n"(!a_k_major), "n"(!b_k_major));
}

template <Mutation mutation, bool a_k_major, bool b_k_major>
__device__ void multiply_tile(float (&d)[64], const Tile& tile) {
  if (mutation != no_register_fence) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int k = 0; k < depth; k += 16) {
    multiply<a_k_major, b_k_major>(d, matrix<mutation>(tile.a + (a_k_major ? k : k * 64)),
                                   matrix<mutation>(tile.b + (b_k_major ? k : k * 64)));
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int groups>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

__device__ void store_tile(const float (&d)[64], float* c, int n) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
  for (int i = 0; i < 64; ++i) {
    c[(thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * n + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}

__device__ void fence_for_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One warpgroup copies a tile while it multiplies the previous one.
template <Mutation mutation, bool a_k_major, bool b_k_major>
__global__ void by_one_warpgroup(Operands of, float* c) {
  __shared__ __align__(1024) Tile tiles[2];
  const int row = static_cast<int>(blockIdx.x) * rows, column = static_cast<int>(blockIdx.y) * columns;
  float d[64] = {};
  const auto copy = [&](int begin) {
    if (begin < of.k) copy_tile<mutation, a_k_major, b_k_major>(tiles[begin / depth % 2], of, row, column, begin);
    asm volatile("cp.async.commit_group;");
  };
  copy(0);
  for (int begin = 0; begin < of.k; begin += depth) {
    if (mutation == three_warps && threadIdx.x >= 96) break;
    copy(begin + depth);
    if (mutation == proxy_fence_too_early) fence_for_async_proxy();
    if (mutation != copies_not_awaited) asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (mutation != no_proxy_fence && mutation != proxy_fence_too_early) fence_for_async_proxy();
    if (mutation != three_warps) __syncthreads();
    multiply_tile<mutation, a_k_major, b_k_major>(d, tiles[begin / depth % 2]);
    if (mutation != no_product_wait) wait_for_products<mutation == waits_for_one_less>();
    if (mutation != three_warps) __syncthreads();
  }
  store_tile(d, c + row * of.n + column, of.n);
}

// One warpgroup copies tiles, another multiplies them. Their mbarriers signal that a tile is full or empty.
__device__ void arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ void arrive_after_copies(std::uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ void wait_for(std::uint64_t& barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
          shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

constexpr int stages = 3;

template <Mutation mutation, bool a_k_major, bool b_k_major>
__global__ void by_two_warpgroups(Operands of, float* c) {
  extern __shared__ __align__(1024) char memory[];
  Tile* const tiles = reinterpret_cast<Tile*>(memory);
  __shared__ std::uint64_t full[stages], empty[stages];
  const int row = static_cast<int>(blockIdx.x) * rows, column = static_cast<int>(blockIdx.y) * columns;
  if (threadIdx.x < stages) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&full[threadIdx.x])),
                 "r"(mutation == one_arrival_too_many ? 129 : 128));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&empty[threadIdx.x])));
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    for (int step = 0; step < of.k / depth; ++step) {
      const int stage = step % stages, round = step / stages;
      if (mutation != producer_does_not_wait) wait_for(empty[stage], (round + 1) % 2);
      copy_tile<mutation, a_k_major, b_k_major>(tiles[stage], of, row, column, step * depth);
      arrive_after_copies(full[stage]);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[64] = {};
    for (int step = 0; step < of.k / depth; ++step) {
      const int stage = step % stages, round = step / stages;
      if (mutation != consumer_does_not_wait) wait_for(full[stage], round % 2);
      if (mutation != no_proxy_fence) fence_for_async_proxy();
      multiply_tile<mutation, a_k_major, b_k_major>(d, tiles[stage]);
      if (mutation == released_too_early && threadIdx.x == 0) arrive(empty[stage]);
      wait_for_products<0>();
      if (mutation != released_too_early && threadIdx.x == 0) arrive(empty[stage]);
    }
    store_tile(d, c + row * of.n + column, of.n);
  }
}

template <bool a_k_major, bool b_k_major, bool two>
struct Wgmma {
  template <Mutation mutation>
  bool operator()() const {
    const Problem problem{2 * rows, 2 * columns, 7 * depth, a_k_major, b_k_major};
    return problem.right([&](const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
      const Operands operands{a, b, problem.m, problem.n, problem.k};
      if (two) {
        const auto kernel = by_two_warpgroups<mutation, a_k_major, b_k_major>;
        REQUIRE(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * sizeof(Tile)) ==
                cudaSuccess);
        kernel<<<dim3(2, 2), 256, stages * sizeof(Tile)>>>(operands, c);
      } else {
        by_one_warpgroup<mutation, a_k_major, b_k_major><<<dim3(2, 2), 128>>>(operands, c);
      }
    });
  }
};
using One = Wgmma<true, false, false>;
using Two = Wgmma<true, false, true>;

TEST_CASE("wgmma: detects the wrong major order of A and B") {
  check_unmutated(Wgmma<true, true, false>{});
  check_unmutated(Wgmma<true, false, false>{});
  check_unmutated(Wgmma<false, true, false>{});
  check_unmutated(Wgmma<false, false, false>{});
  check_unmutated(Wgmma<true, true, true>{});
  check_unmutated(Wgmma<true, false, true>{});
  check_unmutated(Wgmma<false, true, true>{});
  check_unmutated(Wgmma<false, false, true>{});
}
TEST_CASE("wgmma: reports copies not visible to the async proxy") {
  const std::string report =
      "^no fence.proxy.async: shared load of 16 bytes .*wgmma.mma_async.* not ordered with .*: cp.async";
  expect_report<no_proxy_fence>(One{}, report);
  expect_report<no_proxy_fence>(Two{}, report);
  expect_report<proxy_fence_too_early>(One{}, report);
}
TEST_CASE("wgmma: detects copies that are not awaited") { expect_wrong_value<copies_not_awaited>(One{}); }
TEST_CASE("wgmma: reports a missing fence for registers") {
  expect_report<no_register_fence>(One{}, "^no wgmma.fence between other uses of the registers of D and the product");
}
TEST_CASE("wgmma: detects a missing wait for the product") { expect_wrong_value<no_product_wait>(One{}); }
TEST_CASE("wgmma: detects a wait that omits the last group") { expect_wrong_value<waits_for_one_less>(One{}); }
TEST_CASE("wgmma: detects numbers stored without swizzle") { expect_wrong_value<no_swizzle>(One{}); }
TEST_CASE("wgmma: detects wrong leading and stride offsets") {
  expect_wrong_value<wrong_stride>(One{});
  expect_wrong_value<wrong_leading>(One{});
}
TEST_CASE("wgmma: reports that one of four warps is missing") {
  expect_report<three_warps>(One{}, "^deadlock: other warps of the warpgroup do not issue the products");
}
TEST_CASE("wgmma: reports an mbarrier that expects too many arrivals") {
  expect_report<one_arrival_too_many>(Two{}, "^deadlock: a phase of an mbarrier has too few arrivals to end");
}
TEST_CASE("wgmma: reports a consumer that does not wait") {
  expect_report<consumer_does_not_wait>(Two{}, "^data race: shared .*not ordered with ");
}
TEST_CASE("wgmma: reports a producer that does not wait") {
  expect_report<producer_does_not_wait>(Two{},
                                        "data race: shared load of 16 bytes .*wgmma.*not ordered with .*cp.async");
}
TEST_CASE("wgmma: reports a tile released before its product ends") {
  expect_report<released_too_early>(Two{}, "^data race: shared .*not ordered with ");
}

}  // namespace
}  // namespace gatefold::cuda_emulator
