#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cpu/context.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/primitives.hpp"
#include "gatefold/backend/operands.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE {

/// The CPU backend: packed register tiles on Eigen's vector types, threads through an executor (cpu/executor.hpp).
///
/// A type of its own for every instruction set (cpu/instruction_set.hpp): files compiled with different -march may be
/// linked together, each with a backend of its own, and hand each other plain pointers.
///
/// @order  every result is bitwise the same for any number of threads, and an element of a product depends on its own
///         row and the weights alone (cpu/product.hpp says in which order sums are taken)
struct Cpu : cpu::Primitives<Cpu, AsTheyAre> {};

/// The same, where the products of experts multiply bfloat16: floats are rounded to it (nearest, ties to even) where a
/// product packs them, weights, items, hidden values and their adjoints alike, and its sums stay floats. What an MLP
/// keeps for its backward is stored in bfloat16. Parameters, gradients, gates, attention, update rules, losses and
/// optimizers are those of Cpu; double is double.
///
///     CpuBf16::Context ctx;   // the one word that a program changes; tensors are Tensor<float, 2, CpuBf16>
///
/// Views of Cpu convert to views of CpuBf16 and back. Frozen weights take half the memory.
///
/// Fast where the processor multiplies pairs of bfloat16 at twice the speed of floats (vdpbf16ps: AMD from Zen 4 on) or
/// has a matrix unit (AMX: Intel's Xeons from the fourth generation on); elsewhere, and on Intel's vector units, which
/// take pairs at half the speed, rounded floats are multiplied as floats, and what is gained is the memory of frozen
/// weights.
///
/// @throws DeviceError from the first product, in files compiled for AMX, where the system does not grant it
/// @order  as Cpu; where pairs are multiplied they are added as cpu/tile.hpp says, and subnormal operands and sums are
///         0
struct CpuBf16 : cpu::Primitives<CpuBf16, RoundedFloats> {
  /// What an expert keeps of its values for its backward (backend.hpp).
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  /// The primitives whose products multiply what they are given.
  using FullPrecision = cpu::Primitives<CpuBf16, AsTheyAre>;
};

static_assert(Backend<Cpu> && Backend<CpuBf16>);

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE

#if defined(GATEFOLD_KERNELS)
#include "gatefold/backend/cpu/kernels.hpp"
#endif
