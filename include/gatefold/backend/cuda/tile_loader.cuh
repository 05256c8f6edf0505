#pragma once

#include <cstddef>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

// The number of values by which rows in shared memory are padded, so that writes along the depth have no bank
// conflicts.
inline constexpr int kPadding = 4;

/// Copies four neighbouring values from global to shared memory, asynchronously. If `exists` is false, writes zeros.
template <class W>
__device__ void copy_four(void* to, const void* from, bool exists) {
  constexpr std::size_t size = sizeof(Four<W>), step = size < 16 ? size : 16;
#pragma unroll
  for (std::size_t i = 0; i < size; i += step)
    __pipeline_memcpy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, step, exists ? 0 : step);
}

/// Moves one thread's share of `Lines` lines (rows of a product's first factor, columns of the second) to shared
/// memory, [depth][lines]. A thread moves groups of four values, one tile of depth `Depth` at a time. If neighbouring
/// lines are contiguous, they are copied asynchronously. Other lines are kept in registers from load() to store(),
/// which transposes them. Rounded weights are also kept in registers, because they are converted from bfloat16.
///
/// The kernel does not store the sums of lines past the last line. For these lines, the loader reads the last lines
/// again. Past the end of a line (the depth), the loader writes 0.
/// @tparam Whole  whether all groups of four values of the factor are known to exist completely and to be aligned
template <class T, bool Whole, int Lines, int Depth, int Threads>
class TileLoader {
  // A line of a tile has kAcross groups of four values if the layout is along_depth (the values of a line are
  // contiguous). Otherwise, the values of all lines at one depth form kWidth groups.
  static constexpr int kAcross = Depth / 4, kLineStep = Threads / kAcross;
  static constexpr int kWidth = Lines / 4, kRowStep = Threads / kWidth;
  // A thread moves up to kFours groups of four values of a tile. kAll: whether all threads move the same number.
  static constexpr int kFours = divide_up(Lines * kAcross, Threads);
  static constexpr bool kAll = Lines * kAcross % Threads == 0;
  static_assert(Threads % kAcross == 0 && Threads % kWidth == 0,
                "gatefold: every thread must copy groups of four of one column");

 public:
  using Shared = T[Depth][Lines + kPadding];

  /// Prepares to load tiles of the factor `from`, from line `first` and position `begin` of the depth on. The factor
  /// has `lines` lines (rows of the first factor, columns of the second) of length `depth`.
  __device__ void begin(const Operand<T>& from, Index first, Index lines, Index depth, Index begin) {
    layout_ = from.layout;
    left_ = static_cast<int>(depth - begin);
    rows_ = nullptr;
    width_ = 4;
    whole_ = from.aligned && (layout_ == Layout::along_depth ? depth : lines) % 4 == 0;
    if (layout_ == Layout::along_depth) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const Index mine = first + line(i), last = mine < lines ? mine : lines - 1;
        from_[i] = from.data + (from.rows ? from.rows[last] : last) * from.stride +
                   (begin + place()) * static_cast<Index>(sizeof(T));
      }
      return;
    }
    const Index mine = first + four(), last = (lines - 1) / 4 * 4, at = mine < last ? mine : last;
    if (!Whole && lines - at < 4) width_ = static_cast<int>(lines - at);
    stride_ = from.stride;
    from_[0] = from.data + at * static_cast<Index>(layout_ == Layout::rounded ? sizeof(Bfloat16) : sizeof(T));
    if (from.rows) {
      rows_ = from.rows + begin + row(0);
      read_rows();
    } else {
      from_[0] += (begin + row(0)) * stride_;
    }
  }

  /// Reads this thread's values of the next tile. Asynchronous copies write them to `shared`; other values stay in
  /// registers until store() writes them.
  __device__ void load(Shared& shared) {
    if (layout_ == Layout::along_depth) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        if (!kAll && line(i) >= Lines) break;
        held_[i] = load_four<T>(from_[i], left_ - place());
        from_[i] += Depth * sizeof(T);
      }
    } else if (layout_ == Layout::along_lines) {
      each_row([&](int i, const char* from, bool inside) {
        T* to = &shared[row(i)][four()];
        if (Whole || whole_) {
          copy_four<T>(to, from, inside);
        } else {
          for (int j = 0; j < 4; ++j) {
            const bool exists = inside && j < width_;
            __pipeline_memcpy_async(to + j, from + (exists ? j * sizeof(T) : 0), sizeof(T), exists ? 0 : sizeof(T));
          }
        }
      });
    } else {
      each_row(
          [&](int i, const char* from, bool inside) { held_[i] = load_four<Bfloat16>(from, inside ? width_ : 0); });
    }
    left_ -= Depth;
    // Reads the row numbers of the next tile now, so that the next load() does not wait for them.
    if (rows_) read_rows();
  }
  /// Writes the values that the latest load() has read into registers to `shared`. Only the layouts along_depth and
  /// rounded keep values in registers.
  __device__ void store(Shared& shared) const {
    if (layout_ == Layout::along_lines) return;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (layout_ == Layout::along_depth) {
        if (!kAll && line(i) >= Lines) break;
#pragma unroll
        for (int j = 0; j < 4; ++j) shared[place() + j][line(i)] = held_[i].v[j];
      } else {
        if (!kAll && row(i) >= Depth) break;
        *reinterpret_cast<Four<T>*>(&shared[row(i)][four()]) = held_[i];
      }
    }
  }

 private:
  /// Returns the position of this thread's groups of four values in their lines, if the layout is along_depth (the
  /// values of a line are contiguous).
  __device__ static int place() { return static_cast<int>(threadIdx.x) % kAcross * 4; }
  /// Returns the line of this thread's i-th group of four values, if the layout is along_depth.
  __device__ static int line(int i) { return static_cast<int>(threadIdx.x) / kAcross + i * kLineStep; }
  /// Returns the first line of this thread's groups of four values, if neighbouring lines are contiguous (the layouts
  /// along_lines and rounded).
  __device__ static int four() { return static_cast<int>(threadIdx.x) % kWidth * 4; }
  /// Returns the depth (position in the lines) of this thread's i-th group of four values in a tile, if neighbouring
  /// lines are contiguous (the layouts along_lines and rounded).
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / kWidth + i * kRowStep; }

  /// Loads four neighbouring values and converts them to T.
  /// @param count  the number of values that exist; the remaining values become 0
  template <class W>
  __device__ Four<T> load_four(const char* from, int count) const {
    Four<T> four{};
    if (Whole || whole_) {
      if (count <= 0) return four;
      const Four<W> whole = *reinterpret_cast<const Four<W>*>(from);
      for (int j = 0; j < 4; ++j) four.v[j] = T(whole.v[j]);
    } else {
      for (int j = 0; j < 4; ++j)
        if (j < count) four.v[j] = T(reinterpret_cast<const W*>(from)[j]);
    }
    return four;
  }
  __device__ void read_rows() {
#pragma unroll
    for (int i = 0; i < kFours; ++i) row_[i] = row(i) < left_ ? rows_[i * kRowStep] : 0;
    rows_ += Depth;
  }
  /// Calls f(i, from, inside) for each of this thread's groups of four values in a tile. `from` is the address of the
  /// group. `inside` is true if the position of the group in its four lines is before the end of the lines. Only for
  /// layouts in which neighbouring lines are contiguous (along_lines and rounded).
  template <class F>
  __device__ void each_row(const F& f) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (!kAll && row(i) >= Depth) break;
      const bool inside = row(i) < left_;
      f(i, from_[0] + (rows_ ? row_[i] : inside ? i * kRowStep : 0) * stride_, inside);
    }
    if (!rows_) from_[0] += Depth * stride_;
  }

  // State of this thread's loads. from_ are the addresses of the thread's groups of four values in the next tile. With
  // the layouts along_lines and rounded, only from_[0] is used; if rows_ is set, from_[0] points into row 0 of the
  // matrix. rows_ is the address of the row number of the first group in the tile after the next one (with
  // along_lines), or null. row_ are the row numbers of the next tile. left_ is the number of values of a line that are
  // not loaded yet. width_ is the number of lines from this thread's first line on, at most 4 (with along_lines and
  // rounded).
  const char* from_[kFours];
  const Index* rows_;
  Index row_[kFours];
  Index stride_;
  int left_;
  int width_;
  bool whole_;
  Layout layout_;
  Four<T> held_[kFours];
};

}  // namespace gatefold::detail_::device
