#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cuda/primitives.cuh"
#include "gatefold/backend/operands.hpp"

namespace gatefold {

/// The CUDA backend: one stream for each context, CUB for sorting and sums, kernels of this library for grouped
/// products and router scores, and cuBLAS for plain products.
///
/// Only to_host, from_host, pack, and grouped products with Options::blas_experts wait for the device. Sizes that
/// depend on the routing stay on the device. After the first step, steps of the same sizes do not allocate memory, so
/// that a step can be captured in a CUDA graph.
/// @throws DeviceError with the call and CUDA's own message
/// @order  every result is bitwise the same from run to run. An element of a grouped product, and of gemm_rows up to
///         MostColumns::columns, depends only on its own row and the weights. An element of a plain product also
///         depends on the sizes of the product (plain_product.cuh)
struct Cuda : detail_::device::Primitives<Cuda, AsTheyAre> {};

/// The CUDA backend whose products of experts multiply bfloat16 on tensor cores. It rounds floats to bfloat16 (to
/// nearest, ties to even) and sums the products in floats. This applies to weights, items, hidden values and their
/// gradients. The values that an MLP keeps for backward, and the outputs of its slots before they are weighted and
/// summed, are stored in bfloat16. Parameters, gradients, gates, attention, update rules, losses and optimizers are the
/// same as with Cuda. Values of double are not rounded.
///
///     CudaBf16::Context ctx;   // replaces Cuda::Context; tensors are Tensor<float, 2, CudaBf16>
///
/// Views of Cuda convert to views of CudaBf16 and back. For the products of experts, Options::blas_experts only affects
/// double.
/// @throws DeviceError, from the constructor of its context, if the compute capability of the device is below 8.0
/// @order  the order of Cuda. A sum adds 16 products at a time, in the order of k; the order within the 16 products is
///         chosen by the device's tensor core
struct CudaBf16 : detail_::device::Primitives<CudaBf16, RoundedFloats> {
  /// The type of values that an expert keeps for its backward pass (backend.hpp).
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  /// The type of values that are computed only as factors of grouped products.
  template <class T>
  using Multiplied = RoundedFloats::Of<T>;
  /// The type of the outputs of slots, and of the gradients of their items.
  template <class T>
  using SlotValue = RoundedFloats::Of<T>;
  /// The primitives whose products do not round their factors.
  using FullPrecision = detail_::device::Primitives<CudaBf16, AsTheyAre>;
};

static_assert(Backend<Cuda> && Backend<CudaBf16>);

}  // namespace gatefold
