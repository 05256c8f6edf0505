#pragma once

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::device {

template <class W, class T>
__device__ Four<T> load_whole(const char* from) {
  const Four<W> four = *reinterpret_cast<const Four<W>*>(from);
  return {T(four.v[0]), T(four.v[1]), T(four.v[2]), T(four.v[3])};
}
/// @param count  how many of them exist; the others are 0
template <class W, class T>
__device__ Four<T> load_some(const char* from, int count) {
  Four<T> four{};
  for (int i = 0; i < 4; ++i)
    if (i < count) four.v[i] = T(reinterpret_cast<const W*>(from)[i]);
  return four;
}

inline constexpr int kPadding = 4;  // of rows in shared memory: lines that are written along depth meet other banks

/// One thread's share of moving `Lines` lines of an operand to shared memory, [depth][lines]: fours, a tile at a time.
///
/// Past the last line it reads that line again, whose sums nobody stores; past the depth it gives 0.
/// @tparam Whole  whether every four of the operand is whole and aligned
template <class T, bool Whole, int Lines, int Depth, int Threads>
class Mover {
  static constexpr int kFours = Lines * Depth / 4 / Threads;
  static constexpr int kAcross = Depth / 4;               // fours of a line, along_depth
  static constexpr int kLineStep = Threads / kAcross;     // lines from four to four, along_depth
  static constexpr int kRowStep = Threads / (Lines / 4);  // depth from four to four, along_lines
  static_assert(Threads % (Lines / 4) == 0 && Threads % kAcross == 0,
                "gatefold: a thread must keep its column of fours");

 public:
  /// Lines [first, …) of `lines` in all.
  __device__ void begin(const Operand<T>& from, Index first, Index lines, Index depth) {
    layout_ = from.layout;
    stride_ = from.stride;
    step_ = Depth * stride_;
    rows_ = nullptr;
    width_ = 4;
    if (layout_ == Layout::along_depth) {
      const int at = threadIdx.x % kAcross * 4;
      left_ = static_cast<int>(depth) - at;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const Index mine = first + threadIdx.x / kAcross + i * kLineStep, line = mine < lines ? mine : lines - 1;
        from_[i] = from.data + (from.rows ? from.rows[line] : line) * stride_ + at * static_cast<int>(sizeof(T));
      }
    } else {
      const Index mine = first + threadIdx.x % (Lines / 4) * 4, last = (lines - 1) / 4 * 4,
                  line = mine < last ? mine : last;
      const int at = threadIdx.x / (Lines / 4);
      left_ = static_cast<int>(depth) - at;
      if (!Whole && lines - line < 4) width_ = static_cast<int>(lines - line);
      from_[0] = from.data + line * (layout_ == Layout::rounded ? sizeof(Bfloat16) : sizeof(T));
      if (from.rows) {
        rows_ = from.rows + at;
      } else {
#pragma unroll
        for (int i = kFours; i-- > 0;) from_[i] = from_[0] + (at + i * kRowStep) * stride_;
      }
    }
  }

  /// Read the next tile.
  __device__ void load() {
    if (layout_ == Layout::along_depth) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        held_[i] = load_four<T>(from_[i], left_);
        from_[i] += Depth * sizeof(T);
      }
    } else if (layout_ == Layout::along_lines) {
      load_lines<T>();
    } else {
      load_lines<Bfloat16>();
    }
    left_ -= Depth;
  }
  __device__ void store(T (*shared)[Lines + kPadding]) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      if (layout_ == Layout::along_depth) {
        const int k = threadIdx.x % kAcross * 4, line = threadIdx.x / kAcross + i * kLineStep;
#pragma unroll
        for (int j = 0; j < 4; ++j) shared[k + j][line] = held_[i].v[j];
      } else {
        const int k = threadIdx.x / (Lines / 4) + i * kRowStep;
        *reinterpret_cast<Four<T>*>(&shared[k][threadIdx.x % (Lines / 4) * 4]) = held_[i];
      }
    }
  }

 private:
  template <class W>
  __device__ static Four<T> load_four(const char* from, int count) {
    if constexpr (Whole) {
      return count > 0 ? load_whole<W, T>(from) : Four<T>{};
    } else {
      return load_some<W, T>(from, count);
    }
  }
  template <class W>
  __device__ void load_lines() {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const bool inside = i * kRowStep < left_;
      const char* row = rows_ ? from_[0] + (inside ? rows_[i * kRowStep] : 0) * stride_ : from_[i];
      held_[i] = load_four<W>(row, inside ? width_ : 0);
      if (!rows_) from_[i] += step_;
    }
    if (rows_) rows_ += Depth;
  }

  const char* from_[kFours];  // my fours of the next tile; with rows_ the first alone, of row 0
  const Index* rows_;         // along_lines: of my first four, or null
  Index stride_, step_;
  int left_;   // depth from my first four on
  int width_;  // lines from mine on, up to 4
  Layout layout_;
  Four<T> held_[kFours];
};

}  // namespace gatefold::device
