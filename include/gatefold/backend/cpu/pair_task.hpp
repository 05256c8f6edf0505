#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/block_product.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packed_matrix.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/weight_block.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The blocks of one expert's weights, in the order in which a task uses them to compute the two products of an MLP
/// (product_pair.hpp). For each chunk of hidden columns, the blocks of the first product come first, then the blocks of
/// the second.
template <class P>
class PairWeights {
  using T = SumOf<P>;

 public:
  /// Refers to the weights of expert e.
  /// @param shared  memory of packed_size() words for the packed weights of this expert, or null
  PairWeights(const PairBatch<P>& batch, Index e, T* shared) : b_(batch), e_(e), shared_(shared) {}

  Index size() const { return b_.chunks() * of_chunk(); }
  Index of_chunk() const { return b_.ups * b_.blocks() + divide_up(b_.columns, kDepth); }
  WeightBlock<P> operator[](Index i) const {
    const Index j = i / of_chunk() * kDepth, hidden = std::min(kDepth, b_.hidden - j), n = i % of_chunk(),
                ups = b_.ups * b_.blocks();
    if (n >= ups) return block(down(), packed_down(), b_.columns, j, hidden, (n - ups) * kDepth, b_.columns);
    const Index m = n / b_.blocks(), k = n % b_.blocks() * kDepth;
    return block(up(m), packed_up(m), b_.hidden, k, std::min(kDepth, b_.depth - k), j, b_.hidden);
  }
  /// Packs block i of the expert's weights into the memory that all tasks share.
  void pack(Index i) const {
    const WeightBlock<P> block = (*this)[i];
    block.pack(shared_ + (block.packed.full - shared_));
  }

 private:
  static constexpr Index kDepth = Tile<P>::depth;

  Operand<T> up(Index m) const {
    return {b_.up[static_cast<std::size_t>(m)] + e_ * b_.depth * b_.hidden, b_.hidden, false};
  }
  Operand<T> down() const { return {b_.down + e_ * b_.hidden * b_.columns, b_.columns, false}; }
  static WeightBlock<P> block(const Operand<T>& b, PackedMatrix<P> packed, Index all, Index k, Index depth,
                              Index column, Index columns) {
    return {b, packed.block(all, k, depth, column), k, depth, column, std::min(kDepth, columns - column)};
  }
  PackedMatrix<P> packed_up(Index m) const {
    if (b_.prepacked()) return b_.packed_up[static_cast<std::size_t>(m)].expert(e_, b_.depth, b_.hidden);
    return PackedMatrix<P>{shared_, nullptr} + m * b_.up_size();
  }
  PackedMatrix<P> packed_down() const {
    if (b_.prepacked()) return b_.packed_down.expert(e_, b_.hidden, b_.columns);
    return PackedMatrix<P>{shared_, nullptr} + b_.ups * b_.up_size();
  }

  const PairBatch<P>& b_;
  const Index e_;
  T* const shared_;
};

/// Pointers to the scratch memory of one thread. The struct PairMemory computes the sizes.
template <class T>
struct PairWorker {
  T *a, *hidden, *first, *sums, *panels;
};

/// Computes both matrix products of an MLP for a block of rows of one expert, one chunk of hidden columns at a time.
template <class P>
class PairTask {
  using T = SumOf<P>;

 public:
  /// Packs the input of a block of rows.
  /// @param rows  the block: slots (rows of work) of expert e, numbered over all experts
  /// @param end   1 + the number of the last block of `weights` that the task uses
  PairTask(const PairBatch<P>& batch, const HiddenEpilogue<T>& epilogue, Index e, const RowBlock& rows,
           const PairWeights<P>& weights, Index end, const PairWorker<T>& worker)
      : b_(batch),
        epilogue_(epilogue),
        e_(e),
        rows_(rows),
        weights_(weights),
        end_(end),
        product_(worker.panels),
        w_(worker) {
    for (Index block = 0; block < b_.blocks(); ++block)
      weights_[block].pack_rows(b_.a, rows_.first, rows_.count, block * kDepth, packed_a(block));
  }

  /// Computes one chunk of hidden columns and multiplies it by its part of the second weight matrix: sums =
  /// hidden · down, or sums += hidden · down if `add` is true.
  void run(Index chunk, bool add, const Sums<T>& sums) {
    const Index size = rows_.count * kDepth;
    Index i = chunk * weights_.of_chunk();
    for (Index m = 0; m < b_.ups; ++m)
      for (Index block = 0; block < b_.blocks(); ++block)
        multiply(i++, packed_a(block), block > 0, Sums<T>::panels(w_.first + m * size, rows_.count));
    activate(chunk * kDepth, std::min(kDepth, b_.hidden - chunk * kDepth), weights_[i]);
    for (Index j = 0; j < b_.columns; j += kDepth) multiply(i++, w_.hidden, add, sums.from(j));
  }

 private:
  static constexpr Index kDepth = Tile<P>::depth;

  // Computes the hidden values [rows, Tile::stride] from the sums of the first product. One call of the epilogue
  // computes all rows, so that it reads and writes long runs of memory. One call after every register tile was tried;
  // it was 3 % slower.
  // @param down  the block of weights by which the hidden values are multiplied first
  void activate(Index j, Index columns, const WeightBlock<P>& down) const {
    const T* sums[] = {w_.first, b_.ups > 1 ? w_.first + rows_.count * kDepth : nullptr};
    epilogue_.run(epilogue_.epilogue, sums, SumsLayout::panels(rows_.count, Tile<T>::columns), rows_.count, columns, e_,
                  rows_.first, j, w_.hidden);
    // Rounds the hidden values in place, to bfloat16 or to 8 bits. This overwrites no value that is still needed,
    // because a row of rounded values ends before the values that are not read yet.
    if (!std::is_same_v<P, T> || down.packed.quantised)
      down.pack_rows(Operand<T>{w_.hidden, Tile<T>::stride}, 0, rows_.count, 0, w_.hidden);
  }
  T* packed_a(Index block) const { return w_.a + block * rows_.count * Tile<P>::stride; }
  void multiply(Index i, const T* a, bool add, const Sums<T>& to) {
    const WeightBlock<P> block = weights_[i], next = i + 1 < end_ ? weights_[i + 1] : block;
    product_.run(rows_, a, block, i + 1 < end_ ? &next : nullptr, add ? Into::add : Into::store, to);
  }

  const PairBatch<P>& b_;
  const HiddenEpilogue<T>& epilogue_;
  const Index e_;
  const RowBlock rows_;
  const PairWeights<P> weights_;
  const Index end_;
  BlockProduct<P> product_;
  const PairWorker<T> w_;
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
