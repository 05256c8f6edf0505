#pragma once

#include <cstddef>

#include <cuda_pipeline.h>

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

inline constexpr int kPadding = 4;  // pads rows in shared memory against bank conflicts of writes along the depth

/// Copies four neighbouring values from global to shared memory, asynchronously. If `exists` is false, writes zeros.
template <class W>
__device__ void copy_four(void* to, const void* from, bool exists) {
  constexpr std::size_t size = sizeof(Four<W>), step = size < 16 ? size : 16;
#pragma unroll
  for (std::size_t i = 0; i < size; i += step)
    __pipeline_memcpy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, step, exists ? 0 : step);
}

/// One thread's share of moving `Lines` lines of an operand to shared memory, [depth][lines]. A thread moves groups of
/// four values, one tile of depth `Depth` at a time. Lines that are contiguous are copied asynchronously. Other lines
/// are kept in registers from load() to store(), which transposes them. Rounded weights are also kept in registers,
/// because they are widened.
///
/// Past the last line, the loader reads the last lines again; their sums are never stored. Past the depth, it writes 0.
/// @tparam Whole  whether all groups of four values of the operand are known to exist completely and to be aligned
template <class T, bool Whole, int Lines, int Depth, int Threads>
class TileLoader {
  static constexpr int kAcross = Depth / 4, kLineStep = Threads / kAcross;  // along_depth: groups of four of a line
  static constexpr int kWidth = Lines / 4, kRowStep = Threads / kWidth;     // along_lines: groups of four of a row
  static constexpr int kFours = divide_up(Lines * kAcross, Threads);        // groups of four of a thread
  static constexpr bool kAll = Lines * kAcross % Threads == 0;              // whether all threads have the same number
  static_assert(Threads % kAcross == 0 && Threads % kWidth == 0,
                "gatefold: every thread must copy groups of four of one column");

 public:
  using Shared = T[Depth][Lines + kPadding];

  /// Prepares for loading tiles that begin at line `first` of `lines`, at position `begin` of the depth.
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

  /// Reads the next tile. Asynchronous copies write to `shared`; other values stay in registers until store().
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
    if (rows_) read_rows();  // row numbers of the next tile, so that the next load() does not wait for them
  }
  /// Writes to `shared` the values of the latest load() that are in registers (along_depth and rounded).
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
  /// Returns, for along_depth, the position of this thread's groups of four in their lines.
  __device__ static int place() { return static_cast<int>(threadIdx.x) % kAcross * 4; }
  /// Returns, for along_depth, the line of the i-th group.
  __device__ static int line(int i) { return static_cast<int>(threadIdx.x) / kAcross + i * kLineStep; }
  /// Returns, for along_lines and rounded, the first line of this thread's groups of four.
  __device__ static int four() { return static_cast<int>(threadIdx.x) % kWidth * 4; }
  /// Returns, for along_lines and rounded, the depth of the i-th group within a tile.
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
  /// Calls f(i, from, inside) for this thread's groups of four; `inside` is true if the group is inside the depth.
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

  // This thread's groups of four of the next tile. With along_lines and rounded, only the first group is used; if rows_
  // is set, it points into row 0 of the matrix.
  const char* from_[kFours];
  const Index* rows_;  // along_lines: row number of the first group in the tile after the next; or null
  Index row_[kFours];  // row numbers of the next tile
  Index stride_;
  int left_;   // depth that is left from the next tile on
  int width_;  // along_lines: lines from this thread's first line on, at most 4
  bool whole_;
  Layout layout_;
  Four<T> held_[kFours];
};

}  // namespace gatefold::detail_::device
