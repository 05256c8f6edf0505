#pragma once

#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/cuda/tile_loader.cuh"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// Reads weights of 8 or 4 bits and writes the rounded weights ŵ to shared memory, [depth][lines], as floats. It moves
/// tiles as TileLoader does: a line is a column of the weights, or a row if they are transposed, and the depth is the
/// position in a line. A thread moves groups of four neighbouring weights. From load() to store(), it keeps their
/// stored bits in registers.
///
/// The kernel does not store the sums of lines past the last line. For these lines, the loader reads the last lines
/// again. Past the end of a line, the loader writes 0.
template <int Lines, int Depth, int Threads>
class QuantisedLoader {
  static constexpr int kFours = Lines * Depth / 4 / Threads;
  static constexpr int kWidth = Lines / 4, kAcross = Depth / 4;  // groups of four in a row of the weights
  static_assert(Lines * Depth % (4 * Threads) == 0 && Threads % kWidth == 0 && Threads % kAcross == 0 && Depth % 2 == 0,
                "gatefold: every thread must move the same number of groups of four");

 public:
  using Shared = float[Depth][Lines + kPadding];

  /// Prepares to load tiles, from line `first` and position `begin` of the depth on. There are `lines` lines of length
  /// `depth`.
  __device__ void begin(const QuantisedMatrix& from, Index first, Index lines, Index depth, Index begin) {
    from_ = from;
    first_ = first;
    last_ = from.transposed ? lines - 1 : (lines - 1) / 4 * 4;
    depth_ = depth;
    at_ = begin;
  }
  /// Reads this thread's weights of the next tile into registers.
  __device__ void load(Shared&) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const Index mine = first_ + line(i), in_last = mine < last_ ? mine : last_, k = at_ + place(i);
      held_[i] = {};
      if (k < depth_) held_[i] = from_.transposed ? from_.four(in_last, k) : from_.four(k, in_last);
    }
    at_ += Depth;
  }
  /// Writes the weights that the latest load() has read.
  __device__ void store(Shared& shared) const {
#pragma unroll
    for (int i = 0; i < kFours; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        shared[place(i) + (from_.transposed ? j : 0)][line(i) + (from_.transposed ? 0 : j)] =
            held_[i].value(from_.rounding, j);
  }

 private:
  /// Returns the line of the first weight of this thread's i-th group of four in a tile.
  __device__ int line(int i) const {
    return from_.transposed ? static_cast<int>(threadIdx.x) / kAcross + i * (Threads / kAcross)
                            : static_cast<int>(threadIdx.x) % kWidth * 4;
  }
  /// Returns the position of the first weight of this thread's i-th group of four in its line of a tile.
  __device__ int place(int i) const {
    return from_.transposed ? static_cast<int>(threadIdx.x) % kAcross * 4
                            : static_cast<int>(threadIdx.x) / kWidth + i * (Threads / kWidth);
  }

  // from_ is the matrix of one expert. first_ is the first line of the tile, and last_ the last line at which a group
  // of four begins. at_ is the position of the next tile in the lines, which have the length depth_.
  QuantisedMatrix from_;
  Index first_, last_, depth_, at_;
  QuantisedFour held_[kFours];
};

/// The type that moves tiles of a factor to shared memory.
template <class Matrix, bool Whole, int Lines, int Depth, int Threads>
struct LoaderOf {
  using Loader = QuantisedLoader<Lines, Depth, Threads>;
};
template <class T, bool Whole, int Lines, int Depth, int Threads>
struct LoaderOf<Operand<T>, Whole, Lines, Depth, Threads> {
  using Loader = TileLoader<T, Whole, Lines, Depth, Threads>;
};

}  // namespace gatefold::detail_::device
