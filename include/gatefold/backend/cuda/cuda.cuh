#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cuda/primitives.cuh"

namespace gatefold {

/// The CUDA backend: one stream for each context, CUB for sorting and sums, our own tiled kernels for grouped products
/// and router scores, cuBLAS for plain products.
///
/// Nothing waits for the device but to_host, from_host and pack (and grouped products with Options::blas_experts);
/// sizes that depend on routing stay there. After a first step of the same sizes nothing is allocated, so that a step
/// can be captured in a CUDA graph.
/// @throws DeviceError with the call and CUDA's own message
/// @order  every result is bitwise the same from run to run; an element of a grouped product, and of gemm_rows
///         up to MostColumns::columns, depends on its own row and the weights alone, one of a plain product on its
///         sizes too (plain_product.cuh)
struct Cuda : device::Primitives<Cuda> {};

static_assert(Backend<Cuda>);

}  // namespace gatefold
