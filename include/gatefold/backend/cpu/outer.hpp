#pragma once

#include <utility>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/product.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Transposes the matrices of all experts: to[e] = from[e]ᵀ.
template <class From, class To>
void transpose(const From& from, const To& to) {
  for (Index e = 0; e < from.extent(0); ++e)
    for (Index i = 0; i < from.extent(1); ++i)
      for (Index j = 0; j < from.extent(2); ++j) to(e, j, i) = from(e, i, j);
}

/// Estimates the processor cycles of the matrix product c[rows, columns] = aᵀ b of two factors with `depth` rows. The
/// estimate is the sum of the cycles of three parts: the multiply-adds, the transposition of `a`, and the copy of `b`.
/// The multiply-adds are counted with each row of c rounded up to whole vector registers.
template <class T>
double outer_cycles(Index rows, Index columns, Index depth) {
  constexpr Index size = Tile<T>::size;
  const auto in_registers = static_cast<double>(divide_up(columns, size) * rows);
  return static_cast<double>(depth) *
         (in_registers / 2 + static_cast<double>(4 * rows + columns) / static_cast<double>(size));
}
/// Returns whether c = aᵀ b is faster if cᵀ = bᵀ a is computed and the result is transposed. The estimate assumes that
/// all threads share the product, and that one thread transposes c in about one cycle per element.
template <class T>
bool transposes_outer(Index rows, Index columns, Index depth, bool accumulate, int threads) {
  const auto copies = static_cast<double>(Index(accumulate ? 2 : 1) * threads * rows * columns);
  return outer_cycles<T>(columns, rows, depth) + copies < outer_cycles<T>(rows, columns, depth);
}

/// Computes gradients of weights, one matrix product for each expert e: c[e] = a[e]ᵀ b[e], or c[e] += a[e]ᵀ b[e]. The
/// products sum over the rows of both factors, which are the slots (rows of work) of an expert. c is contiguous.
///
/// If c has few columns, its rows fill only a small part of a vector register, and the product has to transpose the
/// wide factor a first. Examples are the gradients of a gate or of a few filters. The function therefore computes
/// cᵀ = bᵀ a and transposes the result, if the estimated time is shorter. All sums have the same bits in both cases.
/// @param batch  batch.all.depth is the depth of a single product. For grouped products, it is the average number of
///               slots of an expert, estimated from an upper bound of all slots. The choice between c and cᵀ uses this
///               number, and not the number of slots that each expert has
/// @cost   the cost of Product; if cᵀ is computed, also scratch of the size of c, and one transposing copy of c (two if
///         the product is added to c)
/// @order  the order of Product, whether c is transposed or not
template <class P, class Context, class V>
void outer(Context& ctx, const Batch<P>& batch, const V& c) {
  using T = SumOf<P>;
  static constexpr functor::Store store{};
  const auto epilogue = Epilogue<T>::with(store);
  const Index rows = c.extent(1), columns = c.extent(2);
  if (!transposes_outer<T>(rows, columns, batch.all.depth, batch.accumulate, ctx.threads()))
    return Product<P>::run(ctx, batch, epilogue);

  const auto mark = ctx.mark();
  const auto transposed_c = ctx.template scratch<T>(c.extent(0), columns, rows);
  if (batch.accumulate) transpose(c, transposed_c);
  Batch<P> transposed = batch;
  std::swap(transposed.all.a, transposed.all.b);
  transposed.all.c = transposed_c.data();
  transposed.all.c_stride = rows;
  transposed.all.rows = columns;
  transposed.all.columns = rows;
  transposed.stays_cached = true;
  Product<P>::run(ctx, transposed, epilogue);
  transpose(transposed_c, c);
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
