#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cuda/primitives.cuh"

namespace gatefold {

/// The CUDA backend. Each context has one stream. CUB sorts and sums, cuBLAS computes plain matrix products, and
/// kernels of this library compute grouped products (one product for each expert) and router scores.
///
/// Only to_host, from_host, functions that pack weights or copy packed weights, and grouped products with
/// Options::blas_experts block the host until the device is done. Sizes that depend on the routing stay on the device.
/// After the first step, steps of the same sizes do not allocate memory, so that a step can be captured in a CUDA
/// graph.
/// @throws DeviceError if a call of CUDA or cuBLAS fails; the message has the name of the call and the library's own
///         message
/// @order  every result is bitwise the same from run to run. An element of a grouped product depends only on its own
///         row and the weights, unless Options::blas_experts is set. An element of gemm_rows with at most
///         MostColumns::columns columns (product_rows.cuh) also depends only on its own row and the weights. An element
///         of a plain product also depends on the sizes of the product (plain_product.cuh)
struct Cuda : detail_::device::Primitives<Cuda, AsTheyAre> {};

/// A CUDA backend that computes the matrix products of experts in bfloat16 on tensor cores. It rounds their float
/// factors (weights, items, hidden values and their gradients) to bfloat16, to nearest with ties to even, and sums the
/// products in float. It also stores three kinds of values in bfloat16: values that an MLP keeps for backward, the
/// output of an expert for each slot before outputs are weighted and summed, and the gradient of the expert's input for
/// each slot. Parameters, gradients of parameters, gates, attention, update rules, losses and optimizers are the same
/// as with Cuda. Values of double are not rounded.
///
///     CudaBf16::Context ctx;   // replaces Cuda::Context; tensors are Tensor<float, 2, CudaBf16>
///
/// Views of Cuda convert to views of CudaBf16 and back. Among the products of experts, Options::blas_experts changes
/// only products of double.
/// @throws DeviceError, from the constructor of its context, if the compute capability of the device is below 8.0, or
///         if the program has no device code for 8.0 or newer
/// @order  results are reproducible as with Cuda. A sum of bfloat16 products adds 16 products at a time, in ascending
///         order of the inner dimension. The device's tensor core chooses the order within the 16 products
struct CudaBf16 : detail_::device::Primitives<CudaBf16, RoundedFloats> {
  /// The type in which an expert keeps values of type T for its backward pass: bfloat16 for float.
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  /// The type for values of type T that are used only as factors of grouped products: bfloat16 for float.
  template <class T>
  using Multiplied = RoundedFloats::Of<T>;
  /// The type for the output of an expert for each slot, and for the gradient of the expert's input for each slot:
  /// bfloat16 for float.
  template <class T>
  using SlotValue = RoundedFloats::Of<T>;
  /// The primitives of this backend with products that do not round their factors to bfloat16.
  using FullPrecision = detail_::device::Primitives<CudaBf16, AsTheyAre>;
};

static_assert(Backend<Cuda> && Backend<CudaBf16>);

}  // namespace gatefold
