#pragma once

// Eigen's macros EIGEN_VECTORIZE_… say which vector instructions a file may use. Only the two headers with these macros
// are included, because <Eigen/Core> takes 0.9 s of compile time. <Eigen/Core> is included if its headers cannot be
// included separately (from Eigen 5 on), or if packet.hpp needs its vector types (on other processors than x86).
#if __has_include(<Eigen/src/Core/util/ConfigureVectorization.h>) && \
    !__has_include(<Eigen/src/Core/InternalHeaderCheck.h>)
#include <Eigen/src/Core/util/Macros.h>

#include <Eigen/src/Core/util/ConfigureVectorization.h>
#endif
#if !defined(EIGEN_MACROS_H) || (defined(EIGEN_VECTORIZE) && !defined(EIGEN_VECTORIZE_SSE2))
#include <Eigen/Core>
#endif
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "gatefold: Eigen: expected version 3.4 or 5, got an older one"
#endif

/// Defines the name of the inline namespace around the CPU backend. The name contains the instruction set for which a
/// file is compiled, and a suffix for -ffast-math.
///
/// Register width, packed weights and rounding depend on the instruction set, and a linker keeps only one copy of a
/// function that several object files define. Therefore `gatefold::Cpu`, and with it every template over a backend, is
/// a different type for each instruction set. Object files compiled for different instruction sets, or with and without
/// -ffast-math, share none of these types, and one program can contain several of these files. Functions of this folder
/// that are not templates over T or the backend are inside the namespace too.
///
/// Intel's vector units multiply pairs of bfloat16 at half the speed at which they multiply floats (0.49 of the
/// multiply-adds on a Xeon of the fifth generation). Files compiled for these processors do not use vdpbf16ps. They use
/// the matrix unit (AMX) if the compiler's target has it; -mno-amx-bf16 switches it off.
#if defined(EIGEN_VECTORIZE_AVX512BF16) && defined(__x86_64__) && \
    ((defined(__AMX_TILE__) && defined(__AMX_BF16__)) || (defined(__AMXTILE__) && defined(__AMXBF16__)))
#define GATEFOLD_INSTRUCTION_SET avx512_amx_bf16
#define GATEFOLD_BFLOAT16_PAIRS
#define GATEFOLD_AMX
#if defined(__AMX_INT8__) || defined(__AMXINT8__)  // not in the name, because it changes no result
#define GATEFOLD_AMX_INT8
#endif
// For Intel processors with bfloat16 instructions, clang defines only the last of these macros, __tune_corei7__.
#elif defined(EIGEN_VECTORIZE_AVX512BF16) &&                                                 \
    (defined(__cooperlake__) || defined(__sapphirerapids__) || defined(__emeraldrapids__) || \
     defined(__graniterapids__) || defined(__tune_corei7__))
#define GATEFOLD_INSTRUCTION_SET avx512_bf16_intel
#elif defined(EIGEN_VECTORIZE_AVX512BF16)
#define GATEFOLD_INSTRUCTION_SET avx512_bf16
#define GATEFOLD_BFLOAT16_PAIRS
#elif defined(EIGEN_VECTORIZE_AVX512ER)
#define GATEFOLD_INSTRUCTION_SET avx512_er
#elif defined(EIGEN_VECTORIZE_AVX512DQ) && defined(__AVX512VNNI__)
#define GATEFOLD_INSTRUCTION_SET avx512_vnni
#elif defined(EIGEN_VECTORIZE_AVX512DQ)
#define GATEFOLD_INSTRUCTION_SET avx512_dq
#elif defined(EIGEN_VECTORIZE_AVX512)
#define GATEFOLD_INSTRUCTION_SET avx512
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA) && defined(__AVXVNNI__)
#define GATEFOLD_INSTRUCTION_SET avx2_fma_vnni
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA)
#define GATEFOLD_INSTRUCTION_SET avx2_fma
#elif defined(EIGEN_VECTORIZE_AVX2)
#define GATEFOLD_INSTRUCTION_SET avx2
#elif defined(EIGEN_VECTORIZE_AVX) && defined(EIGEN_VECTORIZE_FMA)
#define GATEFOLD_INSTRUCTION_SET avx_fma
#elif defined(EIGEN_VECTORIZE_AVX) && defined(__FMA4__)
#define GATEFOLD_INSTRUCTION_SET avx_fma4
#elif defined(EIGEN_VECTORIZE_AVX)
#define GATEFOLD_INSTRUCTION_SET avx
#elif defined(EIGEN_VECTORIZE_SSE4_2)
#define GATEFOLD_INSTRUCTION_SET sse4_2
#elif defined(EIGEN_VECTORIZE_SSE4_1)
#define GATEFOLD_INSTRUCTION_SET sse4_1
#elif defined(EIGEN_VECTORIZE_SSE3)
#define GATEFOLD_INSTRUCTION_SET sse3
#elif defined(EIGEN_VECTORIZE_SSE2)
#define GATEFOLD_INSTRUCTION_SET sse2
#elif defined(EIGEN_VECTORIZE_SVE)
#define GATEFOLD_INSTRUCTION_SET sve
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define GATEFOLD_INSTRUCTION_SET neon_bf16
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__ARM_FEATURE_FMA) && defined(__ARM_FEATURE_DOTPROD)
#define GATEFOLD_INSTRUCTION_SET neon_fma_dot
#elif defined(EIGEN_VECTORIZE_NEON) && defined(__ARM_FEATURE_FMA)
#define GATEFOLD_INSTRUCTION_SET neon_fma
#elif defined(EIGEN_VECTORIZE_NEON)
#define GATEFOLD_INSTRUCTION_SET neon
#elif defined(EIGEN_VECTORIZE)
#define GATEFOLD_INSTRUCTION_SET vector
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define GATEFOLD_INSTRUCTION_SET scalar_fma
#else
#define GATEFOLD_INSTRUCTION_SET scalar
#endif

#if defined(__FAST_MATH__)
#define GATEFOLD_FAST_MATH_OF(name) name##_fast_math
#define GATEFOLD_FAST_MATH(name) GATEFOLD_FAST_MATH_OF(name)
#define GATEFOLD_CPU_ABI GATEFOLD_FAST_MATH(GATEFOLD_INSTRUCTION_SET)
#else
#define GATEFOLD_CPU_ABI GATEFOLD_INSTRUCTION_SET
#endif

// The name of the namespace around the CPU backend, for example on_avx2. Without the prefix `on_`, the namespace
// gatefold would contain bare names of instruction sets, such as avx2.
#define GATEFOLD_CPU_NAMESPACE_OF(name) on_##name
#define GATEFOLD_CPU_NAMESPACE_FOR(name) GATEFOLD_CPU_NAMESPACE_OF(name)
#define GATEFOLD_CPU_NAMESPACE GATEFOLD_CPU_NAMESPACE_FOR(GATEFOLD_CPU_ABI)
