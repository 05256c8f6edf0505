// As in a product on Hopper, one thread loads tiles of bfloat16 matrices with tensor maps, while other threads use the
// previous tiles.
#include <cuda.h>
#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cuda/ptx>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/encoding.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

namespace ptx = cuda::ptx;

constexpr int tile = 64, stages = 2, consumers = 64, warp_threads = 32;

enum class Mistake { none, no_wait, wait_for_other_phase, no_empty, few_bytes, no_swizzle, half_a_stage };

struct __align__(1024) Stages {
  __nv_bfloat16 tiles[stages][2][tile * tile];
  std::uint64_t full[stages], empty[stages];
};

/// Copies the [D, H] matrix of every expert in pairs of tiles: a tile and the one to its right.
template <Mistake mistake>
static __global__ void __launch_bounds__(consumers + warp_threads)
    copy_tiles(const __grid_constant__ CUtensorMap map, int experts, int rows, int columns,
               __nv_bfloat16* to) {  // [experts * row tiles * column tiles, tile, tile]
  extern __shared__ __align__(1024) unsigned char raw[];
  Stages& s = *reinterpret_cast<Stages*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      ptx::mbarrier_init(&s.full[i], 1);
      ptx::mbarrier_init(&s.empty[i], consumers);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();
  const int row_tiles = (rows + tile - 1) / tile, pairs = (columns + 2 * tile - 1) / (2 * tile);
  const int total = experts * row_tiles * pairs;
  int stage = 0;
  std::uint32_t phase = 0;
  const auto next = [&] {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (threadIdx.x >= consumers) {
    if (threadIdx.x != consumers) return;
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
    for (int t = blockIdx.x; t < total; t += gridDim.x, next()) {
      while (mistake != Mistake::no_empty && !ptx::mbarrier_try_wait_parity(&s.empty[stage], phase ^ 1)) {
      }
      const int column = t % pairs * 2 * tile, row = t / pairs % row_tiles * tile, expert = t / pairs / row_tiles;
      for (int half = 0; half < 2; ++half) {
        const std::int32_t place[3] = {column + half * tile, row, expert};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, s.tiles[stage][half], &map, place,
                                  &s.full[stage]);
      }
      constexpr std::uint32_t bytes = 2 * tile * tile * 2;
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &s.full[stage],
                                     mistake == Mistake::few_bytes      ? bytes - 64
                                     : mistake == Mistake::half_a_stage ? bytes / 2
                                                                        : bytes);
    }
  } else {
    for (int t = blockIdx.x; t < total; t += gridDim.x, next()) {
      const std::uint32_t parity = mistake == Mistake::wait_for_other_phase ? phase ^ 1 : phase;
      while (mistake != Mistake::no_wait && !ptx::mbarrier_try_wait_parity(&s.full[stage], parity)) {
      }
      for (int i = threadIdx.x; i < 2 * tile * tile; i += consumers) {
        const int half = i / (tile * tile), r = i / tile % tile, c = i % tile;
        const int chunk = mistake == Mistake::no_swizzle ? c / 8 : (c / 8) ^ (r % 8);
        to[std::size_t(2 * t + half) * tile * tile + r * tile + c] = s.tiles[stage][half][r * tile + chunk * 8 + c % 8];
      }
      ptx::mbarrier_arrive(&s.empty[stage]);
    }
  }
}

constexpr int experts = 3, rows = 100, columns = 200;  // no multiples of a tile

std::vector<std::uint16_t> values() {
  std::vector<std::uint16_t> bits(experts * rows * columns);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i % 0x7f00 + 1);
  return bits;
}

CUtensorMap map_of(const Array<std::uint16_t>& tensor) {
  const Encoding encoding{.address = reinterpret_cast<std::uintptr_t>(tensor.data),
                          .extents = {columns, rows, experts},
                          .strides = {columns * 2, columns * rows * 2},
                          .box = {tile, tile, 1},
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                          .promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B};
  CUtensorMap map;
  REQUIRE(encode(encoding, map) == CUDA_SUCCESS);
  return map;
}

template <Mistake mistake>
std::vector<std::uint16_t> copied(const Array<std::uint16_t>& tensor, unsigned blocks) {
  const std::size_t count = std::size_t{experts} * 2 * 4 * tile * tile;  // 2 x 4 tiles cover a matrix
  const Array<std::uint16_t> to(std::vector<std::uint16_t>(count, 0xdead));
  REQUIRE(cudaFuncSetAttribute(reinterpret_cast<const void*>(copy_tiles<mistake>),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Stages)) == cudaSuccess);
  copy_tiles<mistake><<<blocks, consumers + warp_threads, sizeof(Stages)>>>(map_of(tensor), experts, rows, columns,
                                                                            reinterpret_cast<__nv_bfloat16*>(to.data));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return to.host();
}

/// Returns the matrices tile by tile, with zeros outside of them.
std::vector<std::uint16_t> expected(const std::vector<std::uint16_t>& tensor) {
  std::vector<std::uint16_t> tiles;
  for (int e = 0; e < experts; ++e) {
    for (int row = 0; row < 2 * tile; row += tile) {
      for (int column = 0; column < 4 * tile; column += tile) {
        for (int r = row; r < row + tile; ++r) {
          for (int c = column; c < column + tile; ++c) {
            tiles.push_back(r < rows && c < columns ? tensor[(std::size_t(e) * rows + r) * columns + c] : 0);
          }
        }
      }
    }
  }
  return tiles;
}

TEST_CASE("producer: loads tiles of each matrix one stage ahead") {
  const auto bits = values();
  const Array<std::uint16_t> tensor(bits);
  CHECK(copied<Mistake::none>(tensor, 1) == expected(bits));
  CHECK(copied<Mistake::none>(tensor, 5) == expected(bits));
}

/// Returns the result of a launch with a mistake, and whether there was a race as well.
template <Mistake mistake>
std::string outcome(const Array<std::uint16_t>& tensor, const std::vector<std::uint16_t>& right) {
  std::string text;
  try {
    text = copied<mistake>(tensor, 1) == right ? "right" : "wrong values";
  } catch (const Fault& fault) {
    text = fault.what();
  }
  return std::exchange(races(), {}).empty() ? text : text + "; a race";
}

TEST_CASE("mutants: every seeded mistake is detected") {
  const auto bits = values();
  const auto right = expected(bits);
  const Array<std::uint16_t> tensor(bits);
  options().longest_block = 1 << 20;
  // The producer reuses a stage before a consumer has waited for the copies into the stage, or before a consumer has
  // emptied it.
  const std::string early = "more arrivals at an mbarrier than it expects";
  const std::string no_wait = outcome<Mistake::no_wait>(tensor, right);
  CHECK(no_wait.starts_with(early));
  CHECK(no_wait.ends_with("; a race"));
  CHECK(outcome<Mistake::no_empty>(tensor, right).starts_with(early));
  // A thread waits forever.
  const auto hangs = [](const std::string& text, const std::string& reason) {
    return text.find("lock: ") != std::string::npos && text.find(reason) != std::string::npos;
  };
  CHECK(hangs(outcome<Mistake::wait_for_other_phase>(tensor, right), ""));
  CHECK(hangs(outcome<Mistake::few_bytes>(tensor, right),
              "(the mbarrier at 0x8000 has got 64 bytes more than it expects)"));
  CHECK(hangs(outcome<Mistake::half_a_stage>(tensor, right), "bytes more than it expects"));
  CHECK(outcome<Mistake::no_swizzle>(tensor, right) == "wrong values");
}

static __global__ void map_by_copy(CUtensorMap map, int* to) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Stages& s = *reinterpret_cast<Stages*>(raw);
  ptx::mbarrier_init(&s.full[0], 1);
  const std::int32_t place[3] = {0, 0, 0};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, s.tiles[0][0], &map, place, &s.full[0]);
  *to = raw[0];
}

TEST_CASE("tensor map: faults if __grid_constant__ is missing") {
  const Array<std::uint16_t> tensor(values());
  const Array<int> to({0});
  REQUIRE(cudaFuncSetAttribute(reinterpret_cast<const void*>(map_by_copy), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Stages)) == cudaSuccess);
  std::string message;
  try {
    map_by_copy<<<1, 1, sizeof(Stages)>>>(map_of(tensor), to.data);
  } catch (const Fault& fault) {
    message = fault.what();
  }
  CHECK(message.find("a tensor map in local or shared memory") != std::string::npos);
}

}  // namespace
}  // namespace gatefold::cuda_emulator
