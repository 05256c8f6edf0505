#pragma once

#include <algorithm>
#include <array>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Structs that describe the matrix products of one call of the CPU's product engine (product.hpp, product_pair.hpp).
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The way in which the weights of an expert, the right factor of a matrix product, reach the innermost loop. It is
/// chosen once for each expert (ProductSchedule, PairSchedule). Results do not depend on it.
enum class WeightPath {
  prepacked,    // the weights were packed before the call
  rank_update,  // the function rank_update, for sums with few terms, reads the weights, or a copy in bfloat16
  by_call,      // all threads pack the weights once, before the tasks that share them
  by_task,      // each task reads the weights in place, or packs them for its own use
};

/// The matrix product of one expert: c[rows, columns] = a[rows, depth] b[depth, columns], or c += a b. The product sums
/// over `depth`. The epilogue gets first + i as the number of row i of c. With Slots::are_rows (Batch), this is a slot:
/// one item that is assigned to one expert.
template <class P>
struct Problem {
  using T = SumOf<P>;
  Operand<T> a, b;
  T* c;
  Index c_stride, rows, columns, depth, first;
  PackedMatrix<P> packed{};  // packed copy of matrix b, if there was one before the call; otherwise null
  // packed_columns: number of columns of `packed`, or 0 if it has the columns of b. packed_column: the column of
  // `packed` that is column 0 of b.
  Index packed_columns = 0, packed_column = 0;

  /// Returns the part of `packed` that begins at column `column` of b, in the block of rows [k, k + length).
  PackedMatrix<P> packed_block(Index k, Index length, Index column) const {
    return packed.block(packed_columns > 0 ? packed_columns : columns, k, length, packed_column + column);
  }
};

/// Returns the nanoseconds that matrix products are expected to take on one thread.
/// @param work     number of multiply-adds
/// @param weights  number of elements of the weights that are read
template <class P>
double expected_ns(Index work, Index weights) {
  return std::max(static_cast<double>(work) / static_cast<double>(tuning.products_per_ns * Register<SumOf<P>>::size),
                  static_cast<double>(weights) / static_cast<double>(tuning.weights_per_ns));
}

/// The products of all experts.
template <class P>
struct Batch {
  using T = SumOf<P>;
  // The dimension of the product a b that is divided between the experts: the rows of a, the depth (the dimension over
  // which the product sums), or none if there is only one product.
  enum class Slots { none, are_rows, are_depth };

  // The sizes that the products of all experts have in common, and the pointers to the matrices of the first expert.
  Problem<P> all;
  Slots slots = Slots::none;
  const Index* offsets = nullptr;  // [experts + 1]: the number of each expert's first slot; not used with Slots::none
  Index experts = 1;
  // The caller's upper bound of the number of slots (rows of work) of all experts together. It depends only on sizes,
  // not on the routing. If the present routing has more slots than this, bound() returns their number instead.
  Index most_slots = 0;
  Index first_expert = 0;   // the number that the epilogue gets for the first expert
  bool accumulate = false;  // whether the products are added to the present values of c (c += a b)
  // True if the result c should stay in the cache, because it is small or read soon. It is then not written with
  // non-temporal stores.
  bool stays_cached = false;

  /// Returns an upper bound of the number of rows of the result c. It holds for every routing with the same number of
  /// slots. With Slots::are_rows, it bounds the rows of all experts together. Otherwise, it is the number of rows of
  /// one product.
  Index most_rows() const { return slots == Slots::are_rows ? bound() : all.rows; }
  /// Returns an upper bound of the depth of one expert's product (its number of terms in a sum). It holds for every
  /// routing with the same number of slots.
  Index most_depth() const { return slots == Slots::are_depth ? bound() : all.depth; }

  /// Returns the nanoseconds that the products are expected to take on one thread.
  double nanoseconds() const {
    Index work = 0, weights = 0;
    for (Index e = 0; e < experts; ++e) {
      const Problem<P> p = (*this)[e];
      work += p.rows * p.columns * p.depth;
      if (p.rows > 0) weights += p.columns * (slots == Slots::are_depth ? p.rows : p.depth);
    }
    return expected_ns<P>(work, weights);
  }

  Problem<P> operator[](Index e) const {
    Problem<P> p = all;
    if (slots == Slots::none) return p;
    const Index first = offsets[e], count = offsets[e + 1] - first;
    skip_rows(p.a, first);
    if (slots == Slots::are_rows) {
      p.b.data += e * p.depth * p.columns;
      p.packed = p.packed.expert(e, p.depth, p.columns);
      p.c += first * p.c_stride;
      p.rows = count;
      p.first = first;
    } else {
      skip_rows(p.b, first);
      p.c += e * p.rows * p.columns;
      p.depth = count;
      // Skips the product of an expert without slots by giving it no rows, because it adds nothing to c.
      if (count == 0 && accumulate) p.rows = 0;
    }
    return p;
  }

  /// Removes the first `count` rows of a matrix.
  static void skip_rows(Operand<T>& x, Index count) {
    if (x.rows)
      x.rows += count;
    else
      x.data += count * x.stride;
  }

 private:
  Index bound() const { return std::max(most_slots, experts > 0 ? offsets[experts] - offsets[0] : 0); }
};

/// Describes two matrix products for each expert, one after the other, as in an MLP: c = epilogue(a up) down. See
/// product_pair.hpp, eq. (1).
template <class P>
struct PairBatch {
  using T = SumOf<P>;
  Operand<T> a{};                              // [N, depth]: one row for each item; its rows can be gathered
  std::array<const T*, 2> up{};                // [experts, depth, hidden]
  std::array<PackedMatrix<P>, 2> packed_up{};  // packed copies of the matrices in `up`, or null
  PackedMatrix<P> packed_down{};
  Index ups = 1;
  const T* down = nullptr;  // [experts, hidden, columns]
  T* c = nullptr;           // [S, columns]
  Index depth = 0, hidden = 0, columns = 0;
  const Index* offsets = nullptr;  // [experts + 1]
  Index experts = 0;
  // The caller's upper bound of the number of slots (rows of work). It depends only on sizes, not on the routing. If
  // the present routing has more slots than this, most_slots() returns their number instead.
  Index slots = 0;

  Index blocks() const { return std::max<Index>(divide_up(depth, Tile<P>::depth), 1); }
  Index chunks() const { return std::max<Index>(divide_up(hidden, Tile<P>::depth), 1); }
  Index up_size() const { return PackedMatrix<P>::size(depth, hidden); }
  Index down_size() const { return PackedMatrix<P>::size(hidden, columns); }
  Index packed_size() const { return ups * up_size() + down_size(); }
  Index padded_columns() const { return PackedMatrix<P>::padded(columns); }
  bool prepacked() const { return static_cast<bool>(packed_down); }
  Index work(Index rows) const { return rows * hidden * (ups * depth + columns); }  // number of multiply-adds
  Index rows(Index e) const { return offsets[e + 1] - offsets[e]; }
  /// Returns the nanoseconds that the products are expected to take on one thread.
  double nanoseconds() const {
    Index used = 0;
    for (Index e = 0; e < experts; ++e) used += rows(e) > 0 ? 1 : 0;
    return expected_ns<P>(work(used_slots()), work(used));
  }
  Index used_slots() const { return experts > 0 ? offsets[experts] - offsets[0] : 0; }
  Index most_slots() const { return std::max(slots, used_slots()); }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
