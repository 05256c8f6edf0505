// Seeded mistakes in kernels like those of a mixture-of-experts library. A template argument selects the mistake. Each
// mistake must cause the report or the wrong value that its check names; without a mistake the check must pass.
#undef NDEBUG  // one of the mistakes is an assertion of device code
#include <cublas_v2.h>
#include <cuda_pipeline.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cassert>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/mutant.hpp"

namespace gatefold::cuda_emulator {

enum class Mutation {
  none,
  ties_to_the_higher,
  different_masks,
  mask_without_itself,
  shuffle_in_a_branch,
  missing_barrier,
  missing_second_barrier,
  missing_wait,
  waits_for_one_less,
  missing_commit,
  missing_warp_barrier,
  barrier_in_a_branch,
  barrier_in_each_branch,
  barrier_against_warp,
  one_too_far,
  one_too_few,
  misaligned_vector,
  wrong_leading_dimension,
  far_leading_dimension,
  swapped_operands,
  plain_add,
  other_block_too_early,
  waits_for_ever,
  uninitialised,
  inclusive,
  freed_memory,
  host_memory,
  null_memory,
  other_allocation,
  stack_overrun,
  trap,
  assertion,
  tensor_core,
  too_many_threads,
  too_much_shared,
};
using enum Mutation;

namespace {

const std::string source_line = R"(mutants_test\.cu:\d+)";
const std::string store_past_end =
    R"(^out of bounds global store of 4 bytes at 0x[0-9a-f]+ \(.*end of an allocation of \d+ bytes\))"
    R"(: st\.global.* at )" +
    source_line;
const std::string load_outside =
    R"(^out of bounds global load of 16 bytes at 0x[0-9a-f]+ \(.*allocation.*\): ld\.global\.v4\.f32 at )" +
    source_line;

std::string race_in(const std::string& space, const std::string& kernel) {
  return "^data race: " + space + ".* at " + source_line + ", not ordered with .* at " + source_line +
         ", in kernel .*" + kernel;
}

constexpr unsigned whole_warp = 0xffffffffu;

// Finds the expert with the largest logit in each row of 32. Ties go to the lower index. One warp computes one row.
template <Mutation mutation>
__global__ void top_1(const float* logits, int* picks) {
  const int lane = threadIdx.x, row = blockIdx.x;
  float best = logits[row * 32 + lane];
  int expert = lane;
  for (int step = 16; step > 0; step /= 2) {
    unsigned mask = whole_warp;
    if (mutation == different_masks) mask = lane < 16 ? whole_warp : 0xffff0000u;
    if (mutation == mask_without_itself) mask = 0xffffu;
    if (mutation == shuffle_in_a_branch && lane == 31) break;
    const float other = __shfl_xor_sync(mask, best, step);
    const int other_expert = __shfl_xor_sync(mask, expert, step);
    const bool tie = mutation == ties_to_the_higher ? other_expert > expert : other_expert < expert;
    if (other > best || (other == best && tie)) {
      best = other;
      expert = other_expert;
    }
  }
  if (mutation == shuffle_in_a_branch) __syncwarp();
  if (lane == 0) picks[row] = expert;
}

struct Top1 {
  template <Mutation mutation>
  bool operator()() const {
    std::vector<float> logits;
    for (int i = 0; i < 3 * 32; ++i) logits.push_back(static_cast<float>(i * 7 % 10));  // with ties
    const Array<float> device(logits);
    const Array<int> picks(not_initialised, 3);
    top_1<mutation><<<3, 32>>>(device.data, picks.data);
    std::vector<int> expected;
    for (auto row = logits.begin(); row != logits.end(); row += 32) {
      expected.push_back(static_cast<int>(std::max_element(row, row + 32) - row));
    }
    return picks.host() == expected;
  }
};

TEST_CASE("top-k: detects ties that go to the higher index") { expect_wrong_value<ties_to_the_higher>(Top1{}); }
TEST_CASE("top-k: reports lanes that name different masks") {
  expect_report<different_masks>(Top1{}, R"(^wrong mask: lanes of one collective name 0xffffffff and 0xffff0000)"
                                         R"(: shfl\.sync\.bfly.*top_1.*thread \(16,0,0\)$)");
}
TEST_CASE("top-k: reports a lane missing from its own mask") {
  expect_report<mask_without_itself>(
      Top1{}, R"(^wrong mask: a lane is not in its own mask 0xffff: shfl\.sync\.bfly.*thread \(16,0,0\)$)");
}
TEST_CASE("top-k: reports a lane that leaves the loop of shuffles") {
  expect_report<shuffle_in_a_branch>(
      Top1{}, R"(^mismatch: lanes of mask 0xffffffff wait in shfl\.sync\.bfly\.b32 and here: bar\.warp\.sync)");
}

// Computes the sum of the values of one block in shared memory.
template <Mutation mutation>
__global__ void block_sum(const int* x, int* sum) {
  __shared__ int shared[64];
  const int thread = threadIdx.x;
  shared[thread] = x[thread];
  if (mutation != missing_barrier) __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (thread < step) {
      shared[thread] += shared[thread + (mutation == one_too_far ? 64 - step + 1 : step)];
      if (mutation == barrier_in_a_branch) __syncthreads();
    }
    if (mutation == barrier_against_warp && thread < step) __syncthreads();
    if (mutation == barrier_against_warp) __syncwarp();
    if (mutation != barrier_in_a_branch) __syncthreads();
  }
  if (thread == 0) *sum = shared[0];
}

struct BlockSum {
  template <Mutation mutation>
  bool operator()() const {
    std::vector<int> x(64);
    std::iota(x.begin(), x.end(), 1);
    const Array<int> device(x), sum(not_initialised, 1);
    block_sum<mutation><<<1, 64>>>(device.data, sum.data);
    return sum.host()[0] == std::accumulate(x.begin(), x.end(), 0);
  }
};

TEST_CASE("reduction: reports a missing barrier between write and read") {
  expect_report<missing_barrier>(BlockSum{}, race_in("shared", "block_sum"));
}
TEST_CASE("reduction: reports a barrier that only some threads reach") {
  expect_report<barrier_in_a_branch>(BlockSum{}, "^divergent barrier: ");
}
TEST_CASE("reduction: reports lanes that wait at different barriers") {
  expect_report<barrier_against_warp>(BlockSum{}, R"(^deadlock: of 64 threads 48 wait at a barrier and 16 in a warp)"
                                                  R"( for lanes that do not come \(mask 0xffffffff\))");
}
TEST_CASE("reduction: reports a read past the end of shared memory") {
  expect_report<one_too_far>(BlockSum{}, R"(^out of bounds shared load of 4 bytes at 0x100 \(.*256 bytes\))");
}

// Neighbouring threads of one warp exchange values through shared memory.
template <Mutation mutation>
__global__ void exchange(int* x) {
  __shared__ int shared[32];
  shared[threadIdx.x] = x[threadIdx.x];
  if (mutation == barrier_in_each_branch) {
    if (threadIdx.x < 16) {
      __syncthreads();
    } else {
      x[threadIdx.x] = 0;
      __syncthreads();
    }
  }
  if (mutation != missing_warp_barrier) __syncwarp();
  x[threadIdx.x] = shared[threadIdx.x ^ 1];
}

struct Exchange {
  template <Mutation mutation>
  bool operator()() const {
    std::vector<int> x(32);
    std::iota(x.begin(), x.end(), 0);
    const Array<int> device(x);
    exchange<mutation><<<1, 32>>>(device.data);
    for (int& value : x) value ^= 1;
    return device.host() == x;
  }
};

TEST_CASE("exchange: reports a missing barrier between lanes of a warp") {
  expect_report<missing_warp_barrier>(Exchange{}, race_in("shared", "exchange"));
}

TEST_CASE("exchange: reports half warps that wait at different barriers") {
  expect_report<barrier_in_each_branch>(
      Exchange{}, "^divergent barrier: threads of one warp wait at different instructions: .*thread \\(16,0,0\\)$");
}

// C = A B in tiles of 4 × 4. The sizes need not be multiples of 4.
constexpr int tile = 4;
template <Mutation mutation>
__global__ void tiled_product(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float tile_a[tile][tile], tile_b[tile][tile];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * tile + y, column = blockIdx.x * tile + x;
  const int leading = mutation == wrong_leading_dimension ? m : k;
  const int steps = (k + tile - 1) / tile - (mutation == one_too_few);
  float sum = 0;
  for (int step = 0; step < steps; ++step) {
    const int inner_a = step * tile + x, inner_b = step * tile + y;
    tile_a[y][x] = row < m && inner_a < k ? a[row * leading + inner_a] : 0;
    tile_b[y][x] = inner_b < k && column < n ? b[inner_b * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < tile; ++i) sum += tile_a[y][i] * tile_b[i][x];
    if (mutation != missing_second_barrier) __syncthreads();
  }
  if ((mutation == one_too_far ? row <= m : row < m) && column < n) c[row * n + column] = sum;
}

struct TiledProduct {
  template <Mutation mutation>
  bool operator()() const {
    const int m = 5, n = 6, k = 7;
    std::vector<float> a(m * k), b(k * n), c(m * n);
    for (int i = 0; i < m * k; ++i) a[i] = static_cast<float>(i % 5 - 2);
    for (int i = 0; i < k * n; ++i) b[i] = static_cast<float>(i % 7 - 3);
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        for (int p = 0; p < k; ++p) c[i * n + j] += a[i * k + p] * b[p * n + j];
      }
    }
    const Array<float> device_a(a), device_b(b), device_c(not_initialised, c.size());
    tiled_product<mutation><<<dim3(2, 2), dim3(tile, tile)>>>(device_a.data, device_b.data, device_c.data, m, n, k);
    return device_c.host() == c;
  }
};

TEST_CASE("tiled product: reports a missing barrier before the next tile") {
  expect_report<missing_second_barrier>(TiledProduct{}, race_in("shared", "tiled_product"));
}
TEST_CASE("tiled product: reports a write one row past the end") {
  expect_report<one_too_far>(TiledProduct{}, store_past_end);
}
TEST_CASE("tiled product: detects that the last step is left out") { expect_wrong_value<one_too_few>(TiledProduct{}); }
TEST_CASE("tiled product: detects a wrong distance between rows of A") {
  expect_wrong_value<wrong_leading_dimension>(TiledProduct{});
}

// sums[i] = Σ_t x[t][(i + 1) % ring_width]. Asynchronous copies bring tiles into a ring, while the kernel sums earlier
// tiles.
constexpr int ring_width = 64;
template <Mutation mutation>
__global__ void ring_sum(const int* x, int* sums, int tiles) {
  constexpr int stages = 3;
  __shared__ int ring[stages][ring_width];
  const int i = threadIdx.x;
  const auto fetch = [&](int tile) {
    if (tile < tiles) __pipeline_memcpy_async(&ring[tile % stages][i], x + tile * ring_width + i, sizeof(int));
    if (mutation != missing_commit) __pipeline_commit();
  };
  for (int tile = 0; tile < stages - 1; ++tile) fetch(tile);
  int sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    if (mutation != missing_wait) __pipeline_wait_prior(mutation == waits_for_one_less ? stages - 1 : stages - 2);
    if (mutation != missing_barrier) __syncthreads();
    fetch(tile + stages - 1);
    sum += ring[tile % stages][(i + 1) % ring_width];
  }
  sums[i] = sum;
}

struct RingSum {
  template <Mutation mutation>
  bool operator()() const {
    constexpr int tiles = 7;
    std::vector<int> x(tiles * ring_width), expected(ring_width);
    std::iota(x.begin(), x.end(), 1);
    for (int t = 0; t < tiles; ++t) {
      for (int i = 0; i < ring_width; ++i) expected[i] += x[t * ring_width + (i + 1) % ring_width];
    }
    const Array<int> device(x), sums(not_initialised, ring_width);
    ring_sum<mutation><<<1, ring_width>>>(device.data, sums.data, tiles);
    return sums.host() == expected;
  }
};

TEST_CASE("ring: detects that no thread waits for copies") { expect_wrong_value<missing_wait>(RingSum{}); }
TEST_CASE("ring: detects copies without a group") { expect_wrong_value<missing_commit>(RingSum{}); }
TEST_CASE("ring: reports a read of a tile before its arrival") {
  expect_report<waits_for_one_less>(RingSum{}, race_in("shared", "ring_sum"));
}
TEST_CASE("ring: reports a missing barrier after the wait for copies") {
  expect_report<missing_barrier>(RingSum{}, race_in("shared", "ring_sum"));
}

// out[token[s]] += w[s] y[s]: one block per slot.
template <Mutation mutation>
__global__ void combine(const int* token, const float* w, const float* y, float* out, int width) {
  const int slot = blockIdx.x;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float* const to = out + token[slot] * width + i;
    const float value = w[slot] * y[slot * width + i];
    if (mutation == plain_add) {
      *to += value;
    } else {
      atomicAdd(to, value);
    }
  }
}

struct Combine {
  template <Mutation mutation>
  bool operator()() const {
    const int width = 40;
    const std::vector<int> token = {1, 0, 1, 1};
    const std::vector<float> w = {0.5f, 1, 2, 4};
    std::vector<float> y(4 * width), out(2 * width);
    std::iota(y.begin(), y.end(), -50.0f);
    for (int s = 0; s < 4; ++s) {
      for (int i = 0; i < width; ++i) out[token[s] * width + i] += w[s] * y[s * width + i];
    }
    const Array<int> device_token(token);
    const Array<float> device_w(w), device_y(y), device_out(not_initialised, out.size());
    if (mutation != uninitialised) cudaMemset(device_out.data, 0, out.size() * sizeof(float));
    combine<mutation><<<4, 32>>>(device_token.data, device_w.data, device_y.data, device_out.data, width);
    return device_out.host() == out;
  }
};

TEST_CASE("combine: detects plain addition if slots share a token") {
  expect_report<plain_add>(Combine{}, race_in("global", "combine"));
}
TEST_CASE("combine: detects that the sum does not begin at zero") { expect_wrong_value<uninitialised>(Combine{}); }

// offsets[e] = number of slots before the slots of expert e. One thread computes all offsets.
template <Mutation mutation>
__global__ void expert_offsets(const int* counts, int* offsets, int experts) {
  int sum = 0;
  for (int e = 0; e < experts; ++e) {
    if (mutation == inclusive) sum += counts[e];
    offsets[e] = sum;
    if (mutation != inclusive) sum += counts[e];
  }
  offsets[experts] = sum;
}

struct Offsets {
  template <Mutation mutation>
  bool operator()() const {
    const std::vector<int> counts = {3, 0, 2, 4}, expected = {0, 3, 3, 5, 9};
    const Array<int> device(counts), offsets(not_initialised, mutation == one_too_far ? 4 : 5);
    expert_offsets<mutation><<<1, 1>>>(device.data, offsets.data, 4);
    return offsets.host() == expected;
  }
};

TEST_CASE("offsets: detects inclusive instead of exclusive sums") { expect_wrong_value<inclusive>(Offsets{}); }
TEST_CASE("offsets: reports that the last element has no room") {
  expect_report<one_too_far>(Offsets{}, store_past_end);
}

// Block 0 publishes a total, block 1 waits for it.
template <Mutation mutation>
__global__ void publish(int* total, int* flag, int* copy) {
  volatile int* const shared_by_blocks = total;
  if (blockIdx.x == 0) {
    mutation == other_block_too_early ? * total = 42 : * shared_by_blocks = 42;
    __threadfence();
    if (mutation != waits_for_ever) atomicExch(flag, 1);
  } else {
    while (mutation != other_block_too_early && atomicAdd(flag, 0) == 0) __nanosleep(20);
    __threadfence();
    *copy = mutation == other_block_too_early ? *total : *shared_by_blocks;
  }
}

struct Publish {
  template <Mutation mutation>
  bool operator()() const {
    const std::vector<int> zero = {0};
    const Array<int> total(zero), flag(zero), copy(zero);
    publish<mutation><<<2, 1>>>(total.data, flag.data, copy.data);
    return copy.host()[0] == 42;
  }
};

TEST_CASE("publish: reports a read of another block's output without waiting") {
  expect_report<other_block_too_early>(Publish{}, race_in("global", "publish"));
}
TEST_CASE("publish: reports a wait for a flag never set") {
  expect_report<waits_for_ever>(Publish{}, R"(^livelock: .*publish.*, block \(1,0,0\))");
}

// y[i] = Σ_k w[i, k] x[gather[i], k], four values at a time, with a small local array in each thread.
template <Mutation mutation>
__global__ void gather_rows(const float* x, const int* gather, float* y, int rows) {
  const int row = threadIdx.x;
  if (mutation == trap && row == 3) __trap();
  if (mutation == assertion) assert(row < 3);
  if (mutation == tensor_core) {
    int d0, d1;
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                 : "=r"(d0), "=r"(d1)
                 : "r"(row), "r"(row), "r"(0), "r"(0));
    y[row] = static_cast<float>(d0 + d1);
  }
  float own[4];
  const float4 four = *reinterpret_cast<const float4*>(x + gather[row] * 4 + (mutation == misaligned_vector));
  own[0] = four.x;
  own[1] = four.y;
  own[2] = four.z;
  own[3] = four.w;
  float sum = 0;
  // The order depends on data, so the array must be in local memory.
  const int first = mutation == stack_overrun ? gather[row] + 100000 : gather[row] % 4;
  for (int i = 0; i < 4; ++i) sum += own[mutation == stack_overrun ? first + i : (first + i) % 4];
  y[row] = sum;
}

struct GatherRows {
  template <Mutation mutation>
  bool operator()() const {
    const int rows = 6;
    std::vector<float> x(4 * rows + 4), expected;
    std::iota(x.begin(), x.end(), 0.0f);
    const std::vector<int> gather = {5, 0, 3, 3, 1, mutation == other_allocation ? 1000000 : 2};
    for (int i : {5, 0, 3, 3, 1, 2}) expected.push_back(x[4 * i] + x[4 * i + 1] + x[4 * i + 2] + x[4 * i + 3]);
    const Array<float> device(x), y(not_initialised, expected.size());
    const Array<int> device_gather(gather);
    float* freed = nullptr;
    cudaMalloc(&freed, x.size() * sizeof(float));
    cudaFree(freed);
    const float* from = mutation == freed_memory  ? freed
                        : mutation == host_memory ? x.data()
                        : mutation == null_memory ? nullptr
                                                  : device.data;
    const int threads = mutation == too_many_threads ? 2048 : rows;
    const std::size_t shared = mutation == too_much_shared ? 100 * 1024 : 0;
    gather_rows<mutation><<<1, threads, shared>>>(from, device_gather.data, y.data, rows);
    return y.host() == expected;
  }
};

TEST_CASE("gather: reports a misaligned load of four values") {
  expect_report<misaligned_vector>(
      GatherRows{}, R"(^misaligned .*access of 16 bytes at 0x[0-9a-f]+4: ld\.global\.v4\.f32 at mutants_test\.cu)");
}
TEST_CASE("gather: reports a read of freed memory") { expect_report<freed_memory>(GatherRows{}, load_outside); }
TEST_CASE("gather: reports a read of host memory") { expect_report<host_memory>(GatherRows{}, load_outside); }
TEST_CASE("gather: reports a read from a null pointer") {
  expect_report<null_memory>(GatherRows{}, "^out of bounds global load of 16 bytes at 0x50 ");
}
TEST_CASE("gather: reports an index far outside the array") {
  expect_report<other_allocation>(GatherRows{}, load_outside);
}
TEST_CASE("gather: reports a read past the local array") {
  expect_report<stack_overrun>(GatherRows{}, R"(^out of bounds local load of 4 bytes at 0x[0-9a-f]+ \(.*16 bytes\))");
}
TEST_CASE("gather: reports a trap") {
  expect_report<trap>(GatherRows{},
                      R"(^trap: .*mutants_test\.cu:\d+ in kernel .*gather_rows.*, block \(0,0,0\), thread \(3,0,0\)$)");
}
TEST_CASE("gather: reports a failed assertion") {
  expect_report<assertion>(GatherRows{}, R"(^assertion failed: row < 3 \(.*mutants_test\.cu:\d+\))");
}
TEST_CASE("gather: reports an instruction unknown to the emulator") {
  expect_report<tensor_core>(
      GatherRows{}, R"(^refused: matrices of a shape or type that the emulator does not know: mma\.sync\.aligned)");
}
TEST_CASE("gather: too many threads per block return an error") {
  expect_report<too_many_threads>(GatherRows{}, "^cudaErrorInvalidValue$");
}
TEST_CASE("gather: too much shared memory per block returns an error") {
  expect_report<too_much_shared>(GatherRows{}, "^cudaErrorInvalidValue$");
}

// Row-major y [2, 3] = x [2, 4] W [4, 3] through cuBLAS, which is column-major.
struct BlasProduct {
  template <Mutation mutation>
  bool operator()() const {
    const int rows = 2, d = 4, h = 3;
    std::vector<float> x(rows * d), w(d * h), expected(rows * h);
    std::iota(x.begin(), x.end(), 1.0f);
    std::iota(w.begin(), w.end(), -3.0f);
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < h; ++j) {
        for (int i = 0; i < d; ++i) expected[r * h + j] += x[r * d + i] * w[i * h + j];
      }
    }
    const Array<float> device_x(x), device_w(w), y(not_initialised, expected.size());
    struct Library {
      Library() { cublasCreate(&handle); }
      ~Library() { cublasDestroy(handle); }
      cublasHandle_t handle;
    } const library;
    const float one = 1, zero = 0;
    const int ldx = mutation == far_leading_dimension ? d + 1 : mutation == wrong_leading_dimension ? d - 1 : d;
    const float *left = device_w.data, *right = device_x.data;
    const auto status = mutation == swapped_operands ? cublasSgemm(library.handle, CUBLAS_OP_T, CUBLAS_OP_T, h, rows, d,
                                                                   &one, left, d, right, rows, &zero, y.data, h)
                                                     : cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, h, rows, d,
                                                                   &one, left, h, right, ldx, &zero, y.data, h);
    if (status != CUBLAS_STATUS_SUCCESS) throw Fault(cublasGetStatusName(status));
    return y.host() == expected;
  }
};

TEST_CASE("cuBLAS: reports a leading dimension that exceeds the allocation") {
  expect_report<far_leading_dimension>(BlasProduct{},
                                       R"(^cublasSgemm: B \(4 x 2 with leading dimension 5, 36 bytes at 0x[0-9a-f]+\))"
                                       R"( reaches beyond the end of its allocation$)");
}
TEST_CASE("cuBLAS: a too small leading dimension returns an error") {
  expect_report<wrong_leading_dimension>(BlasProduct{}, "^CUBLAS_STATUS_INVALID_VALUE$");
}
TEST_CASE("cuBLAS: detects transposed operands") { expect_wrong_value<swapped_operands>(BlasProduct{}); }

}  // namespace
}  // namespace gatefold::cuda_emulator
