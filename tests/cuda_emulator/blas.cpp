// A stand-in for cuBLAS: its entry points, their checks and their place in the order of a stream.
#include <cublas_v2.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_emulator/matrix_product.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct Context {
  int device = 0;  // current when the handle was made; cuBLAS does not document calls while another device is current
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
};
Handles<cublasHandle_t, Context>& contexts() {
  static auto& all = *new Handles<cublasHandle_t, Context>;
  return all;
}

cublasStatus_t status_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return CUBLAS_STATUS_SUCCESS;
    case cudaErrorMemoryAllocation:
      return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorInvalidValue:
      return CUBLAS_STATUS_INVALID_VALUE;
    case cudaErrorNoDevice:
      return CUBLAS_STATUS_NOT_INITIALIZED;
    case cudaErrorNotSupported:
      return CUBLAS_STATUS_NOT_SUPPORTED;
    default:
      return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

// Runs one cuBLAS call: counts it, checks the handle and the device, then calls the body.
template <class Body>
cublasStatus_t blas_call(const char* name, cublasHandle_t handle, Body&& body) {
  const std::lock_guard lock(runtime_lock());
  if (const cudaError_t error = begin_call(name)) return status_of(error);
  Context* context = contexts().find(handle);
  if (!context) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (context->device != current_device() && std::string_view(name) != "cublasDestroy") {
    throw Fault(std::string(name) + ": expected device " + std::to_string(context->device) +
                " to be current, for which the handle was made, got device " + std::to_string(current_device()));
  }
  return body(*context);
}

// Checks that a pointer is of the expected kind, because cuBLAS reads it on the host or on the device without a check.
template <class T>
const T* on_host(const std::string& call, const char* name, const T* pointer) {
  if (pointer && !Memory::device().contains(pointer, 1)) return pointer;
  throw Fault(call + ": " + name + ": expected a host address, got " +
              hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)));
}
template <class T>
const T* on_device(const std::string& call, const char* name, const T* pointer, std::size_t count) {
  if (Memory::device().contains(pointer, count * sizeof(T))) return pointer;
  throw Fault(call + ": " + name + ": expected " + std::to_string(count * sizeof(T)) + " bytes of device memory, got " +
              hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)));
}

// The types of one call, and the check that cuBLAS supports them.
struct Types {
  cudaDataType_t a, b, c;
  cublasComputeType_t compute;

  bool in_double() const { return compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC; }

  // Accepts the combinations of types in cuBLAS's tables that a mixture-of-experts layer needs.
  cublasStatus_t check(bool grouped) const {
    const bool half = a == CUDA_R_16F || a == CUDA_R_16BF;
    bool supported = a == b && (c == a || (half && c == CUDA_R_32F && !grouped));
    switch (compute) {
      case CUBLAS_COMPUTE_64F:
      case CUBLAS_COMPUTE_64F_PEDANTIC:
        supported &= a == CUDA_R_64F;
        break;
      case CUBLAS_COMPUTE_32F:
      case CUBLAS_COMPUTE_32F_PEDANTIC:
        supported &= half || a == CUDA_R_32F;
        break;
      case CUBLAS_COMPUTE_32F_FAST_TF32:
      case CUBLAS_COMPUTE_32F_FAST_16BF:
      case CUBLAS_COMPUTE_32F_FAST_16F:
        supported &= a == CUDA_R_32F;
        break;
      default:
        throw Fault("cuBLAS: compute type " + std::to_string(compute) + " is not modelled");
    }
    return supported ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
};

double scalar(const void* pointer, bool in_double, std::size_t index = 0) {
  return in_double ? static_cast<const double*>(pointer)[index] : double{static_cast<const float*>(pointer)[index]};
}

MatrixProduct product_of(const char* name, cublasOperation_t ta, cublasOperation_t tb, std::int64_t m, std::int64_t n,
                         std::int64_t k, const Types& types, std::int64_t lda, std::int64_t ldb, std::int64_t ldc) {
  MatrixProduct product{.transposed_a = ta, .transposed_b = tb, .m = m, .n = n, .k = k, .name = name};
  const bool a = ta != CUBLAS_OP_N, b = tb != CUBLAS_OP_N;
  product.a = {nullptr, types.a, a ? k : m, a ? m : k, lda};
  product.b = {nullptr, types.b, b ? n : k, b ? k : n, ldb};
  product.c = {nullptr, types.c, m, n, ldc};
  return product;
}

// A batch of products of equal size. The matrices of consecutive products are a stride apart.
struct Strided {
  const void *alpha, *beta;
  const void *a, *b;
  void* c;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0, count = 1;
};

cublasStatus_t multiply(const Context& context, const MatrixProduct& shape, const Types& types, const Strided& batch) {
  if (const auto status = types.check(false)) return status;
  if (const auto status = check(shape)) return status;
  if (!batch.alpha || !batch.beta || batch.count < 0) return CUBLAS_STATUS_INVALID_VALUE;

  const auto shifted = [](const Matrix& matrix, const void* first, std::int64_t elements) {
    Matrix result = matrix;
    result.data = static_cast<const char*>(first) + elements * static_cast<std::int64_t>(matrix.element_bytes());
    return result;
  };
  std::vector<MatrixProduct> products(static_cast<std::size_t>(batch.count), shape);
  for (std::int64_t i = 0; i < batch.count; ++i) {
    MatrixProduct& product = products[static_cast<std::size_t>(i)];
    product.a = shifted(shape.a, batch.a, i * batch.stride_a);
    product.b = shifted(shape.b, batch.b, i * batch.stride_b);
    product.c = shifted(shape.c, batch.c, i * batch.stride_c);
  }
  const bool in_double = types.in_double();
  const auto scale = [in_double](std::vector<MatrixProduct>& all, const void* alpha, const void* beta) {
    for (MatrixProduct& product : all) {
      product.alpha = scalar(alpha, in_double);
      product.beta = scalar(beta, in_double);
    }
  };
  const bool late = context.pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  if (!late) scale(products, on_host(shape.name, "alpha", batch.alpha), on_host(shape.name, "beta", batch.beta));
  const int device = context.device;
  return status_of(submit(context.stream, [products = std::move(products), batch, late, scale, device]() mutable {
    if (late && !products.empty()) {
      const std::string& name = products.front().name;
      const std::size_t bytes = products.front().c.type == CUDA_R_64F ? sizeof(double) : sizeof(float);
      on_device(name, "alpha", static_cast<const char*>(batch.alpha), bytes);
      on_device(name, "beta", static_cast<const char*>(batch.beta), bytes);
      scale(products, batch.alpha, batch.beta);
    }
    compute(products, device);
  }));
}

template <class Int>
cublasStatus_t multiply_grouped(const char* name, const Context& context, const cublasOperation_t* ta,
                                const cublasOperation_t* tb, const Int* m, const Int* n, const Int* k,
                                const void* alpha, const void* const* a, const Int* lda, const void* const* b,
                                const Int* ldb, const void* beta, void* const* c, const Int* ldc, Int groups,
                                const Int* group_size, const Types& types) {
  if (const auto status = types.check(true)) return status;
  if (context.pointer_mode != CUBLAS_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (groups < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (groups == 0) return CUBLAS_STATUS_SUCCESS;
  const std::pair<const char*, const Int*> arrays[] = {{"m_array", m},
                                                       {"n_array", n},
                                                       {"k_array", k},
                                                       {"lda_array", lda},
                                                       {"ldb_array", ldb},
                                                       {"ldc_array", ldc},
                                                       {"group_size", group_size}};
  for (const auto& [array, pointer] : arrays) on_host(name, array, pointer);
  for (const auto* operations : {ta, tb}) on_host(name, "trans_array", operations);
  on_host(name, "alpha_array", static_cast<const char*>(alpha));
  on_host(name, "beta_array", static_cast<const char*>(beta));

  std::vector<MatrixProduct> products;
  for (Int g = 0; g < groups; ++g) {
    MatrixProduct product = product_of(name, ta[g], tb[g], m[g], n[g], k[g], types, lda[g], ldb[g], ldc[g]);
    if (const auto status = check(product)) return status;
    if (group_size[g] < 0) return CUBLAS_STATUS_INVALID_VALUE;
    product.alpha = scalar(alpha, types.in_double(), static_cast<std::size_t>(g));
    product.beta = scalar(beta, types.in_double(), static_cast<std::size_t>(g));
    products.insert(products.end(), static_cast<std::size_t>(group_size[g]), product);
  }
  return status_of(submit(context.stream, [=, products = std::move(products), device = context.device]() mutable {
    const std::size_t count = products.size();
    on_device(name, "Aarray", a, count);
    on_device(name, "Barray", b, count);
    on_device(name, "Carray", c, count);
    for (std::size_t i = 0; i < count; ++i) {
      products[i].a.data = a[i];
      products[i].b.data = b[i];
      products[i].c.data = c[i];
    }
    compute(products, device);
  }));
}

}  // namespace

std::size_t live_blas_handles() { return contexts().size(); }

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  const std::lock_guard lock(runtime_lock());
  if (const cudaError_t error = begin_call("cublasCreate")) return status_of(error);
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (refused_while_capturing())
    return CUBLAS_STATUS_ALLOC_FAILED;  // the call allocates a workspace, which a capture does not allow
  *handle = contexts().add({current_device()});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  return blas_call("cublasDestroy", handle, [&](Context&) {
    contexts().remove(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return blas_call("cublasSetStream", handle, [&](Context& context) {
    if (!known_stream(stream) || device_of(stream) != context.device) return CUBLAS_STATUS_INVALID_VALUE;
    context.stream = stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  return blas_call("cublasGetStream", handle, [&](Context& context) {
    *stream = context.stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return blas_call("cublasSetMathMode", handle, [&](Context& context) {
    context.math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  return blas_call("cublasGetMathMode", handle, [&](Context& context) {
    *mode = context.math_mode;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return blas_call("cublasSetPointerMode", handle, [&](Context& context) {
    if (mode != CUBLAS_POINTER_MODE_HOST && mode != CUBLAS_POINTER_MODE_DEVICE) return CUBLAS_STATUS_INVALID_VALUE;
    context.pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  return blas_call("cublasSetWorkspace", handle, [&](Context&) {
    if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != 0) on_device("cublasSetWorkspace", "workspace", static_cast<const char*>(workspace), bytes);
    return CUBLAS_STATUS_SUCCESS;
  });
}

// Each entry point exists with sizes of 32 and of 64 bits.
#define GATEFOLD_BLAS_GEMM(function, documented, T, type, compute_type, Int)                                        \
  cublasStatus_t function(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,   \
                          const T* alpha, const T* a, Int lda, const T* b, Int ldb, const T* beta, T* c, Int ldc) { \
    return blas_call(documented, handle, [&](Context& context) {                                                    \
      const Types types{type, type, type, compute_type};                                                            \
      return multiply(context, product_of(documented, ta, tb, m, n, k, types, lda, ldb, ldc), types,                \
                      {alpha, beta, a, b, c});                                                                      \
    });                                                                                                             \
  }
GATEFOLD_BLAS_GEMM(cublasSgemm_v2, "cublasSgemm", float, CUDA_R_32F, CUBLAS_COMPUTE_32F, int)
GATEFOLD_BLAS_GEMM(cublasSgemm_v2_64, "cublasSgemm", float, CUDA_R_32F, CUBLAS_COMPUTE_32F, std::int64_t)
GATEFOLD_BLAS_GEMM(cublasDgemm_v2, "cublasDgemm", double, CUDA_R_64F, CUBLAS_COMPUTE_64F, int)
GATEFOLD_BLAS_GEMM(cublasDgemm_v2_64, "cublasDgemm", double, CUDA_R_64F, CUBLAS_COMPUTE_64F, std::int64_t)
#undef GATEFOLD_BLAS_GEMM

#define GATEFOLD_BLAS_GEMM_EX(function, Int)                                                                      \
  cublasStatus_t function(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k, \
                          const void* alpha, const void* a, cudaDataType a_type, Int lda, const void* b,          \
                          cudaDataType b_type, Int ldb, const void* beta, void* c, cudaDataType c_type, Int ldc,  \
                          cublasComputeType_t compute_type, cublasGemmAlgo_t) {                                   \
    return blas_call("cublasGemmEx", handle, [&](Context& context) {                                              \
      const Types types{a_type, b_type, c_type, compute_type};                                                    \
      return multiply(context, product_of("cublasGemmEx", ta, tb, m, n, k, types, lda, ldb, ldc), types,          \
                      {alpha, beta, a, b, c});                                                                    \
    });                                                                                                           \
  }
GATEFOLD_BLAS_GEMM_EX(cublasGemmEx, int)
GATEFOLD_BLAS_GEMM_EX(cublasGemmEx_64, std::int64_t)
#undef GATEFOLD_BLAS_GEMM_EX

#define GATEFOLD_BLAS_STRIDED(function, Int)                                                                           \
  cublasStatus_t function(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,      \
                          const void* alpha, const void* a, cudaDataType a_type, Int lda, long long stride_a,          \
                          const void* b, cudaDataType b_type, Int ldb, long long stride_b, const void* beta, void* c,  \
                          cudaDataType c_type, Int ldc, long long stride_c, Int count,                                 \
                          cublasComputeType_t compute_type, cublasGemmAlgo_t) {                                        \
    return blas_call("cublasGemmStridedBatchedEx", handle, [&](Context& context) {                                     \
      const Types types{a_type, b_type, c_type, compute_type};                                                         \
      return multiply(context, product_of("cublasGemmStridedBatchedEx", ta, tb, m, n, k, types, lda, ldb, ldc), types, \
                      {alpha, beta, a, b, c, stride_a, stride_b, stride_c, count});                                    \
    });                                                                                                                \
  }
GATEFOLD_BLAS_STRIDED(cublasGemmStridedBatchedEx, int)
GATEFOLD_BLAS_STRIDED(cublasGemmStridedBatchedEx_64, std::int64_t)
#undef GATEFOLD_BLAS_STRIDED

#define GATEFOLD_BLAS_GROUPED(function, Int)                                                                          \
  cublasStatus_t function(cublasHandle_t handle, const cublasOperation_t ta[], const cublasOperation_t tb[],          \
                          const Int m[], const Int n[], const Int k[], const void* alpha, const void* const a[],      \
                          cudaDataType_t a_type, const Int lda[], const void* const b[], cudaDataType_t b_type,       \
                          const Int ldb[], const void* beta, void* const c[], cudaDataType_t c_type, const Int ldc[], \
                          Int groups, const Int group_size[], cublasComputeType_t compute_type) {                     \
    return blas_call("cublasGemmGroupedBatchedEx", handle, [&](Context& context) {                                    \
      return multiply_grouped("cublasGemmGroupedBatchedEx", context, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, \
                              ldc, groups, group_size, {a_type, b_type, c_type, compute_type});                       \
    });                                                                                                               \
  }
GATEFOLD_BLAS_GROUPED(cublasGemmGroupedBatchedEx, int)
GATEFOLD_BLAS_GROUPED(cublasGemmGroupedBatchedEx_64, std::int64_t)
#undef GATEFOLD_BLAS_GROUPED

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
#define GATEFOLD_STATUS(name) \
  case name:                  \
    return #name;
    GATEFOLD_STATUS(CUBLAS_STATUS_SUCCESS)
    GATEFOLD_STATUS(CUBLAS_STATUS_NOT_INITIALIZED)
    GATEFOLD_STATUS(CUBLAS_STATUS_ALLOC_FAILED)
    GATEFOLD_STATUS(CUBLAS_STATUS_INVALID_VALUE)
    GATEFOLD_STATUS(CUBLAS_STATUS_ARCH_MISMATCH)
    GATEFOLD_STATUS(CUBLAS_STATUS_MAPPING_ERROR)
    GATEFOLD_STATUS(CUBLAS_STATUS_EXECUTION_FAILED)
    GATEFOLD_STATUS(CUBLAS_STATUS_INTERNAL_ERROR)
    GATEFOLD_STATUS(CUBLAS_STATUS_NOT_SUPPORTED)
    GATEFOLD_STATUS(CUBLAS_STATUS_LICENSE_ERROR)
#undef GATEFOLD_STATUS
    default:
      return "unrecognized status";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "the function requires an architectural feature absent from the device";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "an access to GPU memory space failed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "the license check failed";
    default:
      return "unrecognized status";
  }
}
