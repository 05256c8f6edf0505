#pragma once

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/cpu/context.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/primitives.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE {

/// The backend that computes on the CPU. Its matrix products use vector instructions (cpu/packet.hpp) and packed
/// operands. Its threads come from an executor (cpu/executor.hpp).
///
/// Cpu is a different type for each instruction set (cpu/instruction_set.hpp). Files compiled for different instruction
/// sets can therefore be linked into one program. They have different backends, and data passes between them as plain
/// pointers.
///
/// @order  every result is bitwise the same for any number of threads; an element of a product depends only on its own
///         row and the weights (cpu/product.hpp gives the order of sums)
struct Cpu : cpu::Primitives<Cpu, AsTheyAre> {};

/// A CPU backend that multiplies in bfloat16 in the matrix products of experts. A product rounds floats (to nearest,
/// ties to even) when it packs them: weights, items, hidden values and their gradients. Sums stay floats. The values
/// that an MLP saves for its backward pass are stored in bfloat16. Parameters, gradients, gates, attention, update
/// rules, losses and optimizers are computed as with Cpu. Doubles are not rounded.
///
///     CpuBf16::Context ctx;   // replaces Cpu::Context; tensors are Tensor<float, 2, CpuBf16>
///
/// Views of Cpu convert to views of CpuBf16 and back. Frozen float weights of experts (Weights::unchanged) take half
/// the memory that they take with Cpu.
///
/// CpuBf16 is fast on processors that multiply pairs of bfloat16 at twice the speed of floats (vdpbf16ps: AMD from Zen
/// 4 on) or have a matrix unit (AMX: Intel's Xeons from the fourth generation on). On other processors, rounded floats
/// are multiplied as floats, and CpuBf16 only saves memory. Intel's processors without AMX are among these, because
/// their vector units multiply pairs at half the speed of floats.
///
/// @throws DeviceError from bfloat16 products in files compiled for AMX, if the system does not allow AMX
/// @order  as for Cpu. Pairs of bfloat16 are added as in cpu/tile.hpp; their subnormal operands and sums count as 0
struct CpuBf16 : cpu::Primitives<CpuBf16, RoundedFloats> {
  /// The type in which an expert stores values of type T that its backward pass needs: bfloat16 if T is float.
  template <class T>
  using Stored = RoundedFloats::Of<T>;
  /// The same backend functions, but with matrix products that do not round their operands to bfloat16.
  using FullPrecision = cpu::Primitives<CpuBf16, AsTheyAre>;
};

static_assert(Backend<Cpu> && Backend<CpuBf16>);

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE

#if defined(GATEFOLD_KERNELS)
#include "gatefold/backend/cpu/kernels.hpp"
#endif
