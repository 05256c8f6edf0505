#pragma once

#include "gatefold/backend/cpu/cpu.hpp"

// Declares the template instantiations of the CPU backend's products and loops that every model needs, for operands of
// type float, double and Bfloat16. If a program links the CMake target gatefold::kernels, these instantiations are
// compiled once, in the library of that target. The target defines GATEFOLD_KERNELS; without this macro the file
// declares nothing. See docs/explanation/compile_time.md.
//
// GATEFOLD_KERNELS lists the instruction sets for which the library was built, each between spaces, for example
// " avx2_fma avx512_dq ".
#if defined(GATEFOLD_KERNELS)
#include <string_view>

#define GATEFOLD_TEXT_OF(x) #x
#define GATEFOLD_TEXT(x) GATEFOLD_TEXT_OF(x)
static_assert(std::string_view(GATEFOLD_KERNELS).find(" " GATEFOLD_TEXT(GATEFOLD_CPU_ABI) " ") !=
                  std::string_view::npos,
              "gatefold::kernels: this file is compiled for '" GATEFOLD_TEXT(
                  GATEFOLD_CPU_ABI) "', but the kernels were built only for" GATEFOLD_KERNELS
                                    ": compile it with the -march of one of them, or add its -march to the CMake list "
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
GATEFOLD_KERNEL void group_by_and_back(Cpu::Context&, View<const Index, 2, Cpu>, View<Index, 1, Cpu>,
                                       View<Index, 1, Cpu>, View<Index, 1, Cpu>, View<Index, 1, Cpu>,
                                       View<Index, 1, Cpu>);

inline namespace GATEFOLD_CPU_NAMESPACE {

namespace cpu {
using Plain = Primitives<Cpu, AsTheyAre>;
}

GATEFOLD_KERNEL class cpu::BasicContext<Cpu>;
GATEFOLD_KERNEL void cpu::run_tasks(cpu::ExecutorRef, int, Index, cpu::TaskFunction);
GATEFOLD_KERNEL void cpu::run_ranges(cpu::ExecutorRef, int, cpu::Ranges, cpu::RangeFunction);
GATEFOLD_KERNEL void cpu::group_by(Cpu::Context&, Index, const Index*, Index, Index*, Index*);

#define GATEFOLD_WITH_EPILOGUE(T, ...)                                                                                 \
  GATEFOLD_KERNEL void cpu::Plain::gemm(Cpu::Context&, View<const T, 2, Cpu>, bool, View<const T, 2, Cpu>, bool, bool, \
                                        View<T, 2, Cpu>, const functor::__VA_ARGS__&);                                 \
  GATEFOLD_KERNEL void cpu::Plain::grouped_gemm(Cpu::Context&, Groups<Cpu>, View<const T, 2, Cpu>,                     \
                                                View<const T, 3, Cpu>, bool, View<T, 2, Cpu>,                          \
                                                const functor::__VA_ARGS__&);
#define GATEFOLD_KERNELS_OF(T)                                                                                        \
  GATEFOLD_KERNEL void cpu::FewRows<T>::run(Cpu::Context&, const cpu::Batch<T>&, const cpu::Epilogue<T>&);            \
  GATEFOLD_KERNEL void cpu::Product<T>::run(Cpu::Context&, const cpu::Batch<T>&, const cpu::Epilogue<T>&, Index);     \
  GATEFOLD_KERNEL void cpu::ProductPair<T>::run(Cpu::Context&, const cpu::PairBatch<T>&,                              \
                                                const cpu::HiddenEpilogue<T>&, const cpu::Epilogue<T>&, Index);       \
  GATEFOLD_WITH_EPILOGUE(T, Store)                                                                                    \
  GATEFOLD_WITH_EPILOGUE(T, AddBias<T, Cpu>)                                                                          \
  GATEFOLD_WITH_EPILOGUE(T, AddTo<T, Cpu>)                                                                            \
  GATEFOLD_KERNEL void cpu::Plain::grouped_outer(Cpu::Context&, Groups<Cpu>, View<const T, 2, Cpu>,                   \
                                                 View<const T, 2, Cpu>, View<T, 3, Cpu>, bool,                        \
                                                 View<const Index, 1, Cpu>);                                          \
  GATEFOLD_KERNEL void cpu::Plain::grouped_sum<T>(Cpu::Context&, Groups<Cpu>, View<const T, 2, Cpu>, View<T, 2, Cpu>, \
                                                  bool, View<const Index, 1, Cpu>, In<T, 1, Cpu>);
GATEFOLD_KERNELS_OF(float)
GATEFOLD_KERNELS_OF(double)
GATEFOLD_KERNEL void cpu::Product<float>::run(CpuBf16::Context&, const cpu::Batch<float>&, const cpu::Epilogue<float>&,
                                              Index);
GATEFOLD_KERNEL void cpu::FewRows<float>::run(CpuBf16::Context&, const cpu::Batch<float>&, const cpu::Epilogue<float>&);
GATEFOLD_KERNEL void cpu::Product<Bfloat16>::run(CpuBf16::Context&, const cpu::Batch<Bfloat16>&,
                                                 const cpu::Epilogue<float>&, Index);
GATEFOLD_KERNEL void cpu::ProductPair<Bfloat16>::run(CpuBf16::Context&, const cpu::PairBatch<Bfloat16>&,
                                                     const cpu::HiddenEpilogue<float>&, const cpu::Epilogue<float>&,
                                                     Index);
#undef GATEFOLD_KERNELS_OF
#undef GATEFOLD_WITH_EPILOGUE

}  // namespace GATEFOLD_CPU_NAMESPACE
}  // namespace gatefold

#undef GATEFOLD_KERNEL
#endif
