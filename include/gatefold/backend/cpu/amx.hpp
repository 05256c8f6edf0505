#pragma once

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

#if defined(GATEFOLD_AMX)
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

#include "gatefold/core/error.hpp"
#endif

/// Wrappers for Intel's matrix unit (AMX), which Xeons have from the fourth generation on. Each thread has eight tile
/// registers of 16 rows of 64 bytes. One instruction multiplies two tiles and adds the product to a third.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Configures the AMX tile registers of the calling thread for matrix products of operand type P (tile_sum<P>), and
/// releases them in the destructor. The class is empty if P does not use AMX, Intel's matrix unit.
template <class P, bool = on_amx<P>>
class AmxTiles {
 public:
  /// Does nothing, because products of operand type P do not use AMX, and only AMX needs a permission from Linux.
  static void permit() {}
};

#if defined(GATEFOLD_AMX)

/// Requests the permission that Linux requires before a process uses AMX tile registers, and returns whether the system
/// gives it. The permission applies to all threads and children of the process.
inline bool amx_permitted() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return permitted;
#else
  return true;
#endif
}

/// The memory layout that the instruction ldtilecfg reads to configure the AMX tile registers.
struct alignas(64) AmxConfiguration {
  std::uint8_t palette, first_row, reserved[14];
  std::uint16_t bytes[16];
  std::uint8_t rows[16];
};

template <class P>
class AmxTiles<P, true> {
 public:
  static constexpr int rows = 16, words = 16, columns = 16;

  /// Requests the permission for AMX. Call this before you construct the first AmxTiles of a process.
  /// @throws DeviceError if the system does not allow AMX. There is no fallback to vector registers, because their sums
  ///         have different bits
  static void permit() {
    if (!amx_permitted())
      throw DeviceError(
          "CpuBf16: arch_prctl(ARCH_REQ_XCOMP_PERM): this file was compiled for the matrix unit (AMX) of Intel Xeon, "
          "but this processor or operating system does not allow AMX: compile it for another processor, or with "
          "-mno-amx-bf16");
  }

  AmxTiles() { _tile_loadconfig(&all_whole); }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  // All AMX tile registers have their full 16 rows, even if a matrix has fewer rows. A new configuration would take
  // longer than a product of two tiles.
  static constexpr AmxConfiguration all_whole{
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {rows, rows, rows, rows, rows, rows, rows, rows}};
};

/// A matrix of float sums with R · 16 rows and C · 16 columns, held in the AMX tile registers 0 to 3. R and C are
/// 1 or 2.
template <int R, int C>
struct AmxSums {
  AmxSums() {
    // Prevents g++ 12 from moving writes to memory after the loads of tiles. g++ 12 does not treat these loads as reads
    // of memory.
    asm volatile("" ::: "memory");
    _tile_zero(0);
    if constexpr (C == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && C == 2) _tile_zero(3);
  }
  /// Adds the matrix product of `a` and `b` to the sums. Each row of `a` and each column of `b` has 16 pairs of
  /// bfloat16. a_stride and b_stride are distances between rows, in floats (the size of a pair).
  void add(const float* a, Index a_stride, const float* b, Index b_stride) {
    constexpr Index size = sizeof(float);
    _tile_loadd(6, b, b_stride * size);
    _tile_loadd(4, a, a_stride * size);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 2) {
      _tile_loadd(7, b + 16, b_stride * size);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R == 2) {
      _tile_loadd(5, a + 16 * a_stride, a_stride * size);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (R == 2 && C == 2) _tile_dpbf16ps(3, 5, 7);
  }
  void store(float* to, Index stride) const {
    constexpr Index size = sizeof(float);
    _tile_stored(0, to, stride * size);
    if constexpr (C == 2) _tile_stored(1, to + 16, stride * size);
    if constexpr (R == 2) _tile_stored(2, to + 16 * stride, stride * size);
    if constexpr (R == 2 && C == 2) _tile_stored(3, to + 16 * stride + 16, stride * size);
  }
};

#if defined(GATEFOLD_AMX_INT8)
/// Configures the AMX tile registers of the calling thread for products of signed bytes, and restores the previous
/// configuration in the destructor. Each product has 32 terms: C [16, 16] = A [16, 32] B [32, 16].
class AmxBytes {
 public:
  static constexpr int rows = 16, columns = 16, words = 8;  // a word is 4 bytes
  /// @param last_rows  the number of rows of A and C in multiply<true>, 1 to 16
  explicit AmxBytes(int last_rows) {
    const auto last = static_cast<std::uint8_t>(last_rows);
    const AmxConfiguration all{1, 0, {}, {64, 32, 64, 64, 32}, {rows, rows, words, last, last}};
    _tile_storeconfig(&before_);
    // g++ 12 assumes that the configuration instructions access only the first 8 bytes of each object.
    asm volatile("" : : "r"(&all), "r"(&before_) : "memory");
    _tile_loadconfig(&all);
  }
  ~AmxBytes() { _tile_loadconfig(&before_); }
  AmxBytes(const AmxBytes&) = delete;
  AmxBytes& operator=(const AmxBytes&) = delete;

  /// Computes the sums of one product.
  /// @param a     rows of 32 bytes, a_stride bytes apart
  /// @param b     8 rows of words, b_stride bytes apart. Word j of row i contains rows 4 i to 4 i + 3 of column j of B
  /// @param sums  [16, 16], or [last_rows, 16] if `last` is true
  template <bool last>
  void multiply(const void* a, Index a_stride, const void* b, Index b_stride, std::int32_t* sums) const {
    constexpr Index line = columns * static_cast<Index>(sizeof(std::int32_t));
    asm volatile("" ::: "memory");  // keeps earlier writes to memory before the loads of tiles, as in AmxSums()
    _tile_loadd(2, b, b_stride);
    if constexpr (last) {
      _tile_zero(3);
      _tile_loadd(4, a, a_stride);
      _tile_dpbssd(3, 4, 2);
      _tile_stored(3, sums, line);
    } else {
      _tile_zero(0);
      _tile_loadd(1, a, a_stride);
      _tile_dpbssd(0, 1, 2);
      _tile_stored(0, sums, line);
    }
    asm volatile("" ::: "memory");
  }

 private:
  AmxConfiguration before_;
};
#endif

#endif

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
