#pragma once

#include <algorithm>
#include <array>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Describes the work of one call of the engine (product.hpp, product_pair.hpp).
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The product c[rows, columns] (+)= a[rows, depth] b[depth, columns] of one expert. The depth is the dimension over
/// which a product sums. Row i of c is slot first + i.
template <class P>
struct Problem {
  using T = SumOf<P>;
  Operand<T> a, b;
  T* c;
  Index c_stride, rows, columns, depth, first;
  PackedMatrix<P> packed{};  // b if it was packed before the call; otherwise null
};

/// The products of all experts.
template <class P>
struct Batch {
  using T = SumOf<P>;
  // The dimension of a product that is divided between experts: rows, depth, or none if there is only one product.
  enum class Slots { none, are_rows, are_depth };

  Problem<P> all;  // the extents that all experts share, and the pointers of the first expert
  Slots slots = Slots::none;
  const Index* offsets = nullptr;  // [experts + 1]; not used with Slots::none
  Index experts = 1;
  // upper bound of the slots of all experts together, in any routing; bound() corrects it if there are more slots
  Index most_slots = 0;
  bool accumulate = false;  // whether every sum starts at the present value of c
  // whether c is small or read soon, so that it is not written with non-temporal stores
  bool stays_cached = false;

  /// Returns an upper bound of the sum of the rows of all experts, in any routing with the same number of slots.
  Index most_rows() const { return slots == Slots::are_rows ? bound() : all.rows; }
  /// Returns an upper bound of the depth of one expert, in any routing with the same number of slots.
  Index most_depth() const { return slots == Slots::are_depth ? bound() : all.depth; }

  Problem<P> operator[](Index e) const {
    Problem<P> p = all;
    if (slots == Slots::none) return p;
    const Index first = offsets[e], count = offsets[e + 1] - first;
    skip_rows(p.a, first);
    if (slots == Slots::are_rows) {
      p.b.data += e * p.depth * p.columns;
      p.packed = p.packed + e * PackedMatrix<P>::size(p.depth, p.columns);
      p.c += first * p.c_stride;
      p.rows = count;
      p.first = first;
    } else {
      skip_rows(p.b, first);
      p.c += e * p.rows * p.columns;
      p.depth = count;
      if (count == 0 && accumulate) p.rows = 0;  // no terms: do not touch the expert's c
    }
    return p;
  }

 private:
  Index bound() const { return std::max(most_slots, experts > 0 ? offsets[experts] - offsets[0] : 0); }
  static void skip_rows(Operand<T>& x, Index count) {
    if (x.rows)
      x.rows += count;
    else
      x.data += count * x.stride;
  }
};

/// Two products, one after the other, for all experts: see product_pair.hpp, eq. (1).
template <class P>
struct PairBatch {
  using T = SumOf<P>;
  Operand<T> a{};                              // [N, depth]; can be gathered, unlike up and down
  std::array<const T*, 2> up{};                // [experts, depth, hidden]
  std::array<PackedMatrix<P>, 2> packed_up{};  // `up` if it was packed before the call; otherwise null
  PackedMatrix<P> packed_down{};
  Index ups = 1;
  const T* down = nullptr;  // [experts, hidden, columns]
  T* c = nullptr;           // [S, columns]
  Index depth = 0, hidden = 0, columns = 0;
  const Index* offsets = nullptr;  // [experts + 1]
  Index experts = 0;
  Index slots = 0;  // upper bound of the slots in any routing; most_slots() corrects it if there are more slots

  Index blocks() const { return std::max<Index>(divide_up(depth, Tile<P>::depth), 1); }
  Index chunks() const { return std::max<Index>(divide_up(hidden, Tile<P>::depth), 1); }
  Index up_size() const { return PackedMatrix<P>::size(depth, hidden); }
  Index down_size() const { return PackedMatrix<P>::size(hidden, columns); }
  Index packed_size() const { return ups * up_size() + down_size(); }
  Index padded_columns() const { return PackedMatrix<P>::padded(columns); }
  bool prepacked() const { return static_cast<bool>(packed_down); }
  Index work(Index rows) const { return rows * hidden * (ups * depth + columns); }  // number of multiply-adds
  Index rows(Index e) const { return offsets[e + 1] - offsets[e]; }
  Index used_slots() const { return experts > 0 ? offsets[experts] - offsets[0] : 0; }
  Index most_slots() const { return std::max(slots, used_slots()); }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
