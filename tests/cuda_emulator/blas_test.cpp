// Tests the stand-in for cuBLAS: its products against their definition, and the calls that it refuses.
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda_emulator/array.hpp"
#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"

namespace gatefold::cuda_emulator {
namespace {

template <class T>
constexpr cudaDataType_t type_of = CUDA_R_32F;
template <>
constexpr cudaDataType_t type_of<double> = CUDA_R_64F;
template <>
constexpr cudaDataType_t type_of<__half> = CUDA_R_16F;
template <>
constexpr cudaDataType_t type_of<__nv_bfloat16> = CUDA_R_16BF;

struct Library {
  Library() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Library() { cublasDestroy(handle); }
  cublasHandle_t handle = nullptr;
};

// Small integers. Each product and sum of them is exact in each type, so results are compared exactly.
template <class T>
std::vector<T> integers(std::size_t count, unsigned seed) {
  std::vector<T> result;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    result.push_back(T(static_cast<float>(static_cast<int>(seed >> 24) % 5 - 2)));
  }
  return result;
}

// Returns element (i, j) of op(X) for a column-major X.
template <class T>
double element(const std::vector<T>& x, std::size_t offset, cublasOperation_t operation, int leading, int i, int j) {
  const int row = operation == CUBLAS_OP_N ? i : j, column = operation == CUBLAS_OP_N ? j : i;
  return static_cast<double>(static_cast<float>(x[offset + static_cast<std::size_t>(column) * leading + row]));
}

// Computes C ← α op(A) op(B) + β C.
template <class A, class C>
void naive(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, double alpha, const std::vector<A>& a,
           std::size_t a_at, int lda, const std::vector<A>& b, std::size_t b_at, int ldb, double beta,
           std::vector<C>& c, std::size_t c_at, int ldc) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int p = 0; p < k; ++p) sum += element(a, a_at, ta, lda, i, p) * element(b, b_at, tb, ldb, p, j);
      C& to = c[c_at + static_cast<std::size_t>(j) * ldc + i];
      to = C(static_cast<float>(alpha * sum + (beta == 0 ? 0 : beta * static_cast<double>(static_cast<float>(to)))));
    }
  }
}

template <class T>
void check_equal(const std::vector<T>& result, const std::vector<T>& expected) {
  REQUIRE(result.size() == expected.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<float>(result[i]) == static_cast<float>(expected[i]));
  }
}

constexpr cublasOperation_t operations[] = {CUBLAS_OP_N, CUBLAS_OP_T};

template <class A, class C, class Scale>
void check_gemm_ex(cublasComputeType_t compute) {
  const int m = 3, n = 4, k = 5;
  for (const auto ta : operations) {
    for (const auto tb : operations) {
      const int lda = (ta ? k : m) + 2, ldb = (tb ? n : k) + 1, ldc = m + 3;
      const auto a = integers<A>(static_cast<std::size_t>(lda) * 5, 1),
                 b = integers<A>(static_cast<std::size_t>(ldb) * 5, 2);
      auto c = integers<C>(static_cast<std::size_t>(ldc) * n, 3);
      const Array<A> device_a(a), device_b(b);
      const Array<C> device_c(c);
      const Library library;
      const Scale alpha = 2, beta = -1;
      REQUIRE(cublasGemmEx(library.handle, ta, tb, m, n, k, &alpha, device_a.data, type_of<A>, lda, device_b.data,
                           type_of<A>, ldb, &beta, device_c.data, type_of<C>, ldc, compute,
                           CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
      naive(ta, tb, m, n, k, 2, a, 0, lda, b, 0, ldb, -1, c, 0, ldc);
      check_equal(device_c.host(), c);  // the rows between m and ldc must not change
    }
  }
}

TEST_CASE("cublasGemmEx: matches its definition for every layout and type") {
  check_gemm_ex<float, float, float>(CUBLAS_COMPUTE_32F);
  check_gemm_ex<float, float, float>(CUBLAS_COMPUTE_32F_FAST_TF32);
  check_gemm_ex<double, double, double>(CUBLAS_COMPUTE_64F);
  check_gemm_ex<__half, __half, float>(CUBLAS_COMPUTE_32F);
  check_gemm_ex<__half, float, float>(CUBLAS_COMPUTE_32F);
  check_gemm_ex<__nv_bfloat16, __nv_bfloat16, float>(CUBLAS_COMPUTE_32F);
  check_gemm_ex<__nv_bfloat16, float, float>(CUBLAS_COMPUTE_32F_PEDANTIC);
}

TEST_CASE("cublasSgemm and cublasDgemm: match their definition") {
  const int m = 2, n = 3, k = 4;
  const Library library;
  const auto check = [&]<class T>(T, auto gemm, auto m_, auto n_, auto k_) {
    const auto a = integers<T>(8, 4), b = integers<T>(12, 5);
    auto c = integers<T>(6, 6);
    const Array<T> device_a(a), device_b(b), device_c(c);
    const T alpha = 3, beta = 2;
    REQUIRE(gemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_T, m_, n_, k_, &alpha, device_a.data, m_, device_b.data, n_,
                 &beta, device_c.data, m_) == CUBLAS_STATUS_SUCCESS);
    naive(CUBLAS_OP_N, CUBLAS_OP_T, m, n, k, 3, a, 0, m, b, 0, n, 2, c, 0, m);
    check_equal(device_c.host(), c);
  };
  check(float{}, cublasSgemm_v2, m, n, k);
  check(double{}, cublasDgemm_v2, m, n, k);
  check(float{}, cublasSgemm_v2_64, std::int64_t{m}, std::int64_t{n}, std::int64_t{k});
  check(double{}, cublasDgemm_v2_64, std::int64_t{m}, std::int64_t{n}, std::int64_t{k});
}

TEST_CASE("cublasDgemm: does not round double to float") {
  const double tiny = 1e-12;
  const Array<double> a({1 + tiny}), b({1 + tiny}), c({0.0});
  const Library library;
  const double one = 1, zero = 0;
  REQUIRE(cublasDgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data, 1, b.data, 1, &zero, c.data,
                      1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host()[0] == (1 + tiny) * (1 + tiny));
}

TEST_CASE("cublasSgemm: beta 0 ignores C, k 0 ignores A, B") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Array<float> a({2}), b({3}), c({nan});
  const Library library;
  const float one = 1, zero = 0, half = 0.5f;
  REQUIRE(cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data, 1, b.data, 1, &zero, c.data,
                      1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host()[0] == 6);
  REQUIRE(cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 0, &one, nullptr, 1, nullptr, 1, &half, c.data,
                      1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host()[0] == 3);
}

TEST_CASE("cublasSgemm: reads device scalars when the product runs") {
  const Array<float> a({2}), b({3}), c({1}), scalars({10, 100});
  const Library library;
  REQUIRE(cublasSetPointerMode(library.handle, CUBLAS_POINTER_MODE_DEVICE) == CUBLAS_STATUS_SUCCESS);
  const auto gemm = [&](const float* alpha, const float* beta) {
    return cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, alpha, a.data, 1, b.data, 1, beta, c.data, 1);
  };
  REQUIRE(gemm(scalars.data, scalars.data + 1) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.host()[0] == 160);
  const float host = 1;
  CHECK_THROWS_AS(gemm(&host, scalars.data), Fault);
  REQUIRE(cublasSetPointerMode(library.handle, CUBLAS_POINTER_MODE_HOST) == CUBLAS_STATUS_SUCCESS);
  CHECK_THROWS_WITH_AS(
      gemm(&host, scalars.data),
      ("cublasSgemm: beta: expected a host address, got " + hexadecimal(reinterpret_cast<std::uintptr_t>(scalars.data)))
          .c_str(),
      Fault);
}

TEST_CASE("cublasSgemmStridedBatched: matches its definition") {
  const int m = 2, n = 2, k = 3, count = 3;
  const long long stride_a = 8, stride_b = 0, stride_c = 5;
  const auto a = integers<float>(24, 7), b = integers<float>(6, 8);
  auto c = integers<float>(15, 9);
  const Array<float> device_a(a), device_b(b), device_c(c);
  const Library library;
  const float alpha = 1, beta = 1;
  const auto gemm = [&](long long stride, int batches) {
    return cublasGemmStridedBatchedEx(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &alpha, device_a.data,
                                      CUDA_R_32F, m, stride_a, device_b.data, CUDA_R_32F, k, stride_b, &beta,
                                      device_c.data, CUDA_R_32F, m, stride, batches, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
  };
  REQUIRE(gemm(stride_c, count) == CUBLAS_STATUS_SUCCESS);
  for (std::size_t i = 0; i < 3; ++i) {
    naive(CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, 1, a, i * 8, m, b, 0, k, 1, c, i * 5, m);
  }
  check_equal(device_c.host(), c);
  CHECK_THROWS_WITH_AS(gemm(0, 2),
                       ("cublasGemmStridedBatchedEx: C of problem 0 overlaps C of problem 1 at " +
                        hexadecimal(reinterpret_cast<std::uintptr_t>(device_c.data)))
                           .c_str(),
                       Fault);
  CHECK_THROWS_AS(gemm(stride_c, 4), Fault);  // the fourth A begins at the end of its allocation
  CHECK(gemm(stride_c, -1) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(gemm(stride_c, 0) == CUBLAS_STATUS_SUCCESS);
}

// Computes a row-major y = x W for a few experts, as the column-major yᵀ = Wᵀ xᵀ. Products of experts call cuBLAS in
// this way.
struct Grouped {
  static constexpr int experts = 3, d = 4, h = 5;
  std::vector<int> rows{3, 0, 2};
  std::vector<cublasOperation_t> operation = std::vector<cublasOperation_t>(experts, CUBLAS_OP_N);
  std::vector<int> m = std::vector<int>(experts, h), n = rows, k = std::vector<int>(experts, d), lda = m, ldb = k,
                   ldc = m;
  std::vector<int> size = std::vector<int>(experts, 1);
  std::vector<float> alpha = std::vector<float>(experts, 1), beta = std::vector<float>(experts, 0);
  std::vector<__nv_bfloat16> w = integers<__nv_bfloat16>(experts * d * h, 10), x = integers<__nv_bfloat16>(5 * d, 11);
  Array<__nv_bfloat16> device_w{w}, device_x{x}, y{std::vector<__nv_bfloat16>(5 * h)};
  Array<const void*> a{{device_w.data, device_w.data + d* h, device_w.data + 2 * d* h}};
  Array<const void*> b{{device_x.data, device_x.data + 3 * d, device_x.data + 3 * d}};
  Array<void*> c{{y.data, y.data + 3 * h, y.data + 3 * h}};
  Library library;

  cublasStatus_t run(const int* sizes, const void* const* pointers, cudaDataType_t c_type = CUDA_R_16BF) {
    return cublasGemmGroupedBatchedEx(library.handle, operation.data(), operation.data(), m.data(), n.data(), k.data(),
                                      alpha.data(), pointers, CUDA_R_16BF, lda.data(), b.data, CUDA_R_16BF, ldb.data(),
                                      beta.data(), c.data, c_type, ldc.data(), experts, sizes, CUBLAS_COMPUTE_32F);
  }
};

TEST_CASE("cublasGemmGroupedBatchedEx: matches its definition for any groups") {
  Grouped grouped;
  REQUIRE(grouped.run(grouped.size.data(), grouped.a.data) == CUBLAS_STATUS_SUCCESS);
  const auto y = grouped.y.host();
  const int expert_of_row[] = {0, 0, 0, 2, 2};
  for (int row = 0; row < 5; ++row) {
    for (int j = 0; j < Grouped::h; ++j) {
      double sum = 0;
      for (int i = 0; i < Grouped::d; ++i) {
        const int w_index = (expert_of_row[row] * Grouped::d + i) * Grouped::h + j;
        sum += static_cast<double>(static_cast<float>(grouped.x[static_cast<std::size_t>(row * Grouped::d + i)])) *
               static_cast<double>(static_cast<float>(grouped.w[static_cast<std::size_t>(w_index)]));
      }
      CHECK(static_cast<float>(y[static_cast<std::size_t>(row * Grouped::h + j)]) == static_cast<float>(sum));
    }
  }
}

TEST_CASE("cublasGemmGroupedBatchedEx: checks sizes, pointers and types") {
  Grouped grouped;
  const Array<int> sizes(grouped.size);
  CHECK_THROWS_WITH_AS(grouped.run(sizes.data, grouped.a.data),
                       ("cublasGemmGroupedBatchedEx: group_size: expected a host address, got " +
                        hexadecimal(reinterpret_cast<std::uintptr_t>(sizes.data)))
                           .c_str(),
                       Fault);
  const std::vector<const void*> pointers = grouped.a.host();
  CHECK_THROWS_WITH_AS(grouped.run(grouped.size.data(), pointers.data()),
                       ("cublasGemmGroupedBatchedEx: Aarray: expected 24 bytes of device memory, got " +
                        hexadecimal(reinterpret_cast<std::uintptr_t>(pointers.data())))
                           .c_str(),
                       Fault);
  CHECK(grouped.run(grouped.size.data(), grouped.a.data, CUDA_R_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
  grouped.size[1] = -1;
  CHECK(grouped.run(grouped.size.data(), grouped.a.data) == CUBLAS_STATUS_INVALID_VALUE);
}

TEST_CASE("cuBLAS: invalid arguments return an error and write nothing") {
  const Array<float> a(std::vector<float>(6, 1)), b(std::vector<float>(6, 1)), c(std::vector<float>(4, 7));
  const Library library;
  const float one = 1;
  const auto gemm = [&](int m, int n, int k, int lda, int ldb, int ldc, cublasOperation_t ta = CUBLAS_OP_N) {
    return cublasSgemm(library.handle, ta, CUBLAS_OP_N, m, n, k, &one, a.data, lda, b.data, ldb, &one, c.data, ldc);
  };
  for (const auto status : {gemm(2, 2, 3, 1, 3, 2), gemm(2, 2, 3, 2, 2, 2), gemm(2, 2, 3, 2, 3, 1),
                            gemm(2, 2, 3, 2, 3, 2, CUBLAS_OP_T), gemm(-1, 2, 3, 2, 3, 2), gemm(2, -1, 3, 2, 3, 2),
                            gemm(2, 2, -1, 2, 3, 2), gemm(0, 0, 0, 0, 1, 1), gemm(2, 2, 3, 3, 3, 2, CUBLAS_OP_CONJG)}) {
    CHECK(status == CUBLAS_STATUS_INVALID_VALUE);
  }
  CHECK(cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, nullptr, a.data, 2, b.data, 3, &one, c.data,
                    2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasGemmEx(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, a.data, CUDA_R_32F, 2, b.data,
                     CUDA_R_16BF, 3, &one, c.data, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(c.host() == std::vector<float>(4, 7));
}

TEST_CASE("cuBLAS: an unsupported compute type throws Fault with its number") {
  const Array<__half> a(integers<__half>(6, 1)), b(integers<__half>(6, 2)), c(integers<__half>(4, 3));
  const Library library;
  const __half one = 1.f;
  static_assert(CUBLAS_COMPUTE_16F == 64 && CUBLAS_COMPUTE_32I == 72);
  const auto gemm = [&](cublasComputeType_t type) {
    return cublasGemmEx(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, a.data, CUDA_R_16F, 2, b.data,
                        CUDA_R_16F, 3, &one, c.data, CUDA_R_16F, 2, type, CUBLAS_GEMM_DEFAULT);
  };
  CHECK_THROWS_WITH_AS(gemm(CUBLAS_COMPUTE_16F), "cuBLAS: compute type 64 is not modelled", Fault);
  CHECK_THROWS_WITH_AS(gemm(CUBLAS_COMPUTE_32I), "cuBLAS: compute type 72 is not modelled", Fault);
}

TEST_CASE("cuBLAS: a matrix outside memory, misaligned or overlapping throws Fault") {
  const Array<float> a(std::vector<float>(6, 1)), b(std::vector<float>(6, 1)), c(std::vector<float>(4, 7));
  const Library library;
  const float one = 1;
  const auto gemm = [&](const float* left, int lda, float* out, int ldc) {
    return cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, left, lda, b.data, 3, &one, out, ldc);
  };
  CHECK(gemm(a.data, 2, c.data, 2) == CUBLAS_STATUS_SUCCESS);
  CHECK_THROWS_WITH_AS(
      gemm(a.data, 3, c.data, 2),
      ("cublasSgemm: A (2 x 3 with leading dimension 3, 32 bytes at " +
       hexadecimal(reinterpret_cast<std::uintptr_t>(a.data)) + ") reaches beyond the end of its allocation")
          .c_str(),
      Fault);
  CHECK_THROWS_AS(gemm(a.data, 2, c.data, 3), Fault);
  CHECK_THROWS_AS(gemm(a.data, 2, a.data, 2), Fault);
  CHECK_THROWS_AS(gemm(reinterpret_cast<float*>(reinterpret_cast<char*>(a.data) + 2), 2, c.data, 2), Fault);
  const std::vector<float> host(6);
  CHECK_THROWS_WITH_AS(gemm(host.data(), 2, c.data, 2),
                       ("cublasSgemm: A (2 x 3 with leading dimension 2, 24 bytes at " +
                        hexadecimal(reinterpret_cast<std::uintptr_t>(host.data())) + ") is not in device memory")
                           .c_str(),
                       Fault);
}

TEST_CASE("cuBLAS: interleaved columns do not overlap") {
  // A and C are the left and right halves of one row-major matrix, as slices of a fused projection are.
  const Array<float> both(integers<float>(16, 12)), b(std::vector<float>{1, 0, 0, 1});
  const Library library;
  const float one = 1, zero = 0;
  const auto before = both.host();
  REQUIRE(cublasSgemm(library.handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, both.data, 4, b.data, 2, &zero,
                      both.data + 2, 4) == CUBLAS_STATUS_SUCCESS);
  auto expected = before;
  for (std::size_t j : {0, 1}) {
    for (std::size_t i : {0, 1}) expected[4 * j + 2 + i] = before[4 * j + i];
  }
  CHECK(both.host() == expected);
}

TEST_CASE("cuBLAS handles: invalid handles, streams and workspaces are errors") {
  cublasHandle_t handle = nullptr;
  CHECK(cublasSetStream(handle, nullptr) == CUBLAS_STATUS_NOT_INITIALIZED);
  fail("cublasCreate", 0, cudaErrorMemoryAllocation);
  CHECK(cublasCreate(&handle) == CUBLAS_STATUS_ALLOC_FAILED);
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(calls()["cublasCreate"] == 2);
  CHECK(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  cublasMath_t mode;
  CHECK(cublasGetMathMode(handle, &mode) == CUBLAS_STATUS_SUCCESS);
  CHECK(mode == CUBLAS_TF32_TENSOR_OP_MATH);

  cudaStream_t stream = nullptr, found = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  CHECK(cublasSetStream(handle, stream) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasGetStream(handle, &found) == CUBLAS_STATUS_SUCCESS);
  CHECK(found == stream);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cublasSetStream(handle, stream) == CUBLAS_STATUS_INVALID_VALUE);
  const Array<float> a({2}), b({3}), c({1});
  const float one = 1;
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data, 1, b.data, 1, &one, c.data, 1) ==
        CUBLAS_STATUS_EXECUTION_FAILED);

  const Array<char> workspace(std::vector<char>(1024));
  CHECK(cublasSetWorkspace(handle, workspace.data, 1024) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasSetWorkspace(handle, workspace.data + 1, 512) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK_THROWS_AS(cublasSetWorkspace(handle, workspace.data, 1025), Fault);

  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_CASE("cuBLAS status: names and messages equal the library's") {
  CHECK(std::string(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED)) == "CUBLAS_STATUS_NOT_SUPPORTED");
  CHECK(std::string(cublasGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED)) ==
        "the requested functionality is not supported");
  void* const library = dlopen(CUDA_EMULATOR_CUBLAS, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  using Text = const char*(cublasStatus_t);
  auto* const name = reinterpret_cast<Text*>(dlsym(library, "cublasGetStatusName"));
  auto* const sentence = reinterpret_cast<Text*>(dlsym(library, "cublasGetStatusString"));
  REQUIRE((name && sentence));
  for (int code = 0; code < 20; ++code) {
    const auto status = static_cast<cublasStatus_t>(code);
    CHECK(std::string(cublasGetStatusName(status)) == name(status));
    CHECK(std::string(cublasGetStatusString(status)) == sentence(status));
  }
}

}  // namespace
}  // namespace gatefold::cuda_emulator
