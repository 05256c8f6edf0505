#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gatefold/backend/cuda/elements.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// The lanes (threads) that process a row together on a device: a warp, or an aligned part of one (backend/lanes.hpp).
/// The lanes exchange sums and maxima in a butterfly pattern, so that every lane computes the same bits. Only a maximum
/// can differ between lanes: if a value is NaN, or in its sign if it is zero. Sums, maxima and of_first also order
/// memory: after one of these calls, a lane can read values that the other lanes wrote before the call.
///
/// The functions compile for the host too, because functors are compiled for host and device, but must only run on the
/// device.
/// @tparam Size  a power of two up to 32. Different parts of a warp run independently of each other
template <int Size>
struct WarpPart {
  static_assert(0 < Size && Size <= 32 && (Size & (Size - 1)) == 0,
                "gatefold: the size of a part of a warp must be a power of two up to 32");
  static constexpr int size = Size;
  int lane;

  template <class T>
  GATEFOLD_HD T sum(T v) const {
#ifdef __CUDA_ARCH__
    const unsigned mine = mask();
    __syncwarp(mine);  // shuffle instructions do not order memory accesses
    for (int distance = size / 2; distance > 0; distance /= 2) v += __shfl_xor_sync(mine, v, distance);
#endif
    return v;
  }
  template <class T>
  GATEFOLD_HD T max(T v) const {
#ifdef __CUDA_ARCH__
    const unsigned mine = mask();
    __syncwarp(mine);  // shuffle instructions do not order memory accesses
    for (int distance = size / 2; distance > 0; distance /= 2) {
      const T other = __shfl_xor_sync(mine, v, distance);
      v = other > v ? other : v;
    }
#endif
    return v;
  }
  /// Returns the first lane's value v on every lane. T is a number, or a struct of whole 32-bit words.
  template <class T>
  GATEFOLD_HD T of_first(T v) const {
#ifdef __CUDA_ARCH__
    const unsigned mine = mask();
    __syncwarp(mine);  // shuffle instructions do not order memory accesses
    if constexpr (std::is_arithmetic_v<T>) {
      return __shfl_sync(mine, v, 0, size);
    } else {
      static_assert(sizeof(T) % sizeof(unsigned) == 0);
      unsigned words[sizeof(T) / sizeof(unsigned)];
      memcpy(words, &v, sizeof(T));
      for (unsigned& word : words) word = __shfl_sync(mine, word, 0, size);
      memcpy(&v, words, sizeof(T));
      return v;
    }
#else
    return v;
#endif
  }

 private:
#ifdef __CUDA_ARCH__
  /// Returns the bit mask of the threads that work together on one row: this thread and its neighbours in the same part
  /// of the warp.
  __device__ static unsigned mask() {
    if constexpr (size == 32) {
      return 0xffffffffu;
    } else {
      return ((1u << size) - 1) << (threadIdx.x % 32 / size * size);
    }
  }
#endif
};
using Warp = WarpPart<32>;

/// Transposes a 4 × 4 matrix of which each of four neighbouring lanes holds one row. Afterwards, v[i] of lane j is the
/// former v[j] of lane i. All lanes of a warp must call it.
__device__ inline void transpose_of_four(std::uint32_t (&v)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool high = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      const std::uint32_t came = __shfl_xor_sync(0xffffffffu, high ? v[i] : v[i + distance], distance);
      (high ? v[i] : v[i + distance]) = came;
    }
  }
}

/// One of several warps that divide the columns of a row between them (lanes.hpp, IndependentColumns).
struct WarpOfRow : Warp {
  /// The number of neighbouring float columns that a lane processes at once; they have 16 bytes.
  static constexpr int columns_at_once = 4;
  int part, parts;

  /// Calls f(i) for the numbers i < n that belong to this lane. `parts` warps with `size` lanes each share the row, so
  /// that every (parts · size)-th number belongs to a lane.
  template <class F>
  GATEFOLD_HD void share(Index n, const F& f) const {
    for (Index i = part * size + lane; i < n; i += parts * size) f(i);
  }
  template <class T, class F>
  GATEFOLD_HD void each(Index n, const F& f) const {
    if constexpr (std::is_same_v<T, float>) {
      share(divide_up(n, columns_at_once), [&](Index i) {
        const Index j = i * columns_at_once;
        f(ElementsAccess<columns_at_once>::of_left(n - j), j);
      });
    } else {
      share(n, [&](Index j) { f(OneElement<T>{}, j); });
    }
  }
};

}  // namespace gatefold::detail_::device
