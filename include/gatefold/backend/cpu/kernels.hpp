#pragma once

#include "gatefold/backend/cpu/cpu.hpp"

// What programs instantiate of the CPU engine whatever their model is, for float and double. The target gatefold::kernels defines
// GATEFOLD_KERNELS: then these are declared here, and built once, in its library. Without it this file is empty.
//
// GATEFOLD_KERNELS names the instruction sets that the library was built for, each between blanks: " avx2_fma avx512_dq ".
#if defined(GATEFOLD_KERNELS)
#include <string_view>

#define GATEFOLD_TEXT_OF(x) #x
#define GATEFOLD_TEXT(x) GATEFOLD_TEXT_OF(x)
static_assert(std::string_view(GATEFOLD_KERNELS).find(" " GATEFOLD_TEXT(GATEFOLD_CPU_ABI) " ") !=
                  std::string_view::npos,
              "gatefold::kernels: this file is compiled for '" GATEFOLD_TEXT(
                  GATEFOLD_CPU_ABI) "', but kernels were built for" GATEFOLD_KERNELS
                                    "alone: compile it with another -march, or add its own to the CMake list "
                                    "GATEFOLD_KERNELS_FOR");
#undef GATEFOLD_TEXT
#undef GATEFOLD_TEXT_OF

#if defined(GATEFOLD_KERNELS_SOURCE)
#define GATEFOLD_KERNEL template
#else
#define GATEFOLD_KERNEL extern template
#endif

namespace gatefold {
GATEFOLD_KERNEL class Scratch<Cpu>;
}  // namespace gatefold

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

GATEFOLD_KERNEL void run_tasks(ExecutorRef, int, Index, TaskFunction);
GATEFOLD_KERNEL void group_by(Cpu::Context&, Index, const Index*, Index, Index*, Index*);

#define GATEFOLD_KERNELS_OF(T)                                                                                        \
  GATEFOLD_KERNEL void Product<T>::run(Cpu::Context&, const Batch<T>&, const Epilogue<T>&, Index);                    \
  GATEFOLD_KERNEL void ProductPair<T>::run(Cpu::Context&, const PairBatch<T>&, const HiddenEpilogue<T>&,              \
                                           const Epilogue<T>&, Index);                                                \
  GATEFOLD_KERNEL void outer(Cpu::Context&, const Batch<T>&, const View<T, 3, Cpu>&);                                 \
  GATEFOLD_KERNEL void grouped_sum(Cpu::Context&, Index, const Index*, const T*, const Index*, const T*, Index, bool, \
                                   T*);
GATEFOLD_KERNELS_OF(float)
GATEFOLD_KERNELS_OF(double)
#undef GATEFOLD_KERNELS_OF

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu

#undef GATEFOLD_KERNEL
#endif
