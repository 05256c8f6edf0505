#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cuda/primitives.cuh"
#include "gatefold/backend/operands.hpp"

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
struct Cuda : detail_::device::Primitives<Cuda, AsTheyAre> {};

/// The same, where the products of experts multiply bfloat16 on tensor cores: floats are rounded to it (nearest, ties
/// to even), weights, items, hidden values and their adjoints alike, and summed in floats. What an MLP keeps for its
/// backward is stored in bfloat16, and so is what its slots give before it is weighed and summed. Parameters,
/// gradients, gates, attention, update rules, losses and optimizers are those of Cuda; double is double.
///
///     CudaBf16::Context ctx;   // the one word that a program changes; tensors are Tensor<float, 2, CudaBf16>
///
/// Views of Cuda convert to views of CudaBf16 and back.
/// Of what experts multiply, Options::blas_experts holds for double alone.
/// @throws DeviceError, by its context, below compute capability 8.0
/// @order  as Cuda; a sum takes 16 products at a time, in the order of k, as the tensor core of the device adds them
struct CudaBf16 : detail_::device::Primitives<CudaBf16, RoundedFloats> {
  /// What an expert keeps of its values for its backward (backend.hpp).
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  /// What is made for its products alone.
  template <class T>
  using Multiplied = RoundedFloats::Of<T>;
  /// What experts give to items, and take from them as adjoints.
  template <class T>
  using SlotValue = RoundedFloats::Of<T>;
  /// The primitives whose products multiply what they are given.
  using FullPrecision = detail_::device::Primitives<CudaBf16, AsTheyAre>;
};

static_assert(Backend<Cuda> && Backend<CudaBf16>);

}  // namespace gatefold
