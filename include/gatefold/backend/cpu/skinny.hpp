#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

/// Products of a few rows with weights that are read where they lie: packing would cost more than it saves.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// s[R, columns] continued by K steps of the chains (1), from B in place: reads each weight once, in long runs.
/// @param a     packed rows, Tile::stride apart
/// @param b     [values, b_stride] in  the rows of K words, of which the last may lack a value
/// @param sums  [R, sums_stride] in, out  writable up to the next whole register
template <class P, int R, int K>
void axpy(const SumOf<P>* a, const SumOf<P>* b, Index values, Index b_stride, Index columns, SumOf<P>* sums,
          Index sums_stride) {
  using T = SumOf<P>;
  using V = Register<T>;
  V x[R][K];
  WordsAcross<P> rows[K];
  for (int k = 0; k < K; ++k) {
    const Index upper = k * values_of_word<P>, lower = upper + 1;
    rows[k] = {b + upper * b_stride, values_of_word<P> == 2 && lower < values ? b + lower * b_stride : nullptr};
    for (int i = 0; i < R; ++i) x[i][k] = V(a[i * Tile<P>::stride + k]);
  }
  const auto step = [&](Index j, int count) {
    // Rows are far apart: no prefetcher of the machine finds the next ones.
    constexpr Index ahead = tuning.prefetched_registers * V::size;
    const Index next = j + ahead + (j + ahead < columns ? 0 : values * b_stride - columns);
    V y[K];
    for (int k = 0; k < K; ++k) {
      y[k] = rows[k].load(j, count);
      __builtin_prefetch(rows[k].upper + next, 0, 3);
      if constexpr (values_of_word<P> == 2) __builtin_prefetch(rows[k].upper + b_stride + next, 0, 3);
    }
    for (int i = 0; i < R; ++i) {
      V s = V::load(sums + i * sums_stride + j);
      for (int k = 0; k < K; ++k) s = V(multiply_add<P>(x[i][k].packet(), y[k].packet(), s.packet()));
      s.store(sums + i * sums_stride + j);
    }
  };
  Index j = 0;
  for (; j + V::size <= columns; j += V::size) step(j, V::size);
  if (j < columns) step(j, static_cast<int>(columns - j));
}

/// sums[rows, sums_stride] = the chains (1) of a few rows, from B in place.
template <class P>
[[gnu::noinline]] void skinny_sum(Index rows, Index depth, const SumOf<P>* a, const SumOf<P>* b, Index b_stride,
                                  Index columns, SumOf<P>* sums, Index sums_stride) {
  using T = SumOf<P>;
  for (Index i = 0; i < rows * sums_stride; ++i) sums[i] = 0;
  const auto steps = [&]<int K>(std::integral_constant<int, K>, Index k) {
    using Kernel = void (*)(const T*, const T*, Index, Index, Index, T*, Index);
    constexpr Kernel kernels[] = {axpy<P, 1, K>, axpy<P, 2, K>, axpy<P, 3, K>, axpy<P, 4, K>};
    const Index first = k * values_of_word<P>, values = std::min<Index>(K * values_of_word<P>, depth - first);
    for (Index i = 0; i < rows; i += 4)
      kernels[std::min<Index>(rows - i, 4) - 1](a + i * Tile<P>::stride + k, b + first * b_stride, values, b_stride,
                                                columns, sums + i * sums_stride, sums_stride);
  };
  const Index all = words<P>(depth);
  Index k = 0;
  if (rows <= 2)
    for (; k + 8 <= all; k += 8) steps(std::integral_constant<int, 8>{}, k);
  for (; k + 4 <= all; k += 4) steps(std::integral_constant<int, 4>{}, k);
  for (; k < all; ++k) steps(std::integral_constant<int, 1>{}, k);
}

/// to += from, n a multiple of a register's size
template <class T>
void add_sums(Index n, const T* from, T* to) {
  using V = Register<T>;
  for (Index i = 0; i < n; i += V::size) (V::load(to + i) + V::load(from + i)).store(to + i);
}

/// sums[rows, stride] = or += a[row …, k …] b[k …, column …], the chains of all blocks of k added in order.
/// @param stride        a multiple of a register's size
/// @param packed, part  memory for [rows, Tile::stride] of A and [rows, stride] sums
template <class P>
void skinny_product(const Operand<SumOf<P>>& a, Index row, Index rows, const Operand<SumOf<P>>& b, Index column,
                    Index columns, Index k, Index depth, bool add, SumOf<P>* sums, Index stride, SumOf<P>* packed,
                    SumOf<P>* part) {
  using T = SumOf<P>;
  for (Index x = 0; x == 0 || x < depth; x += Tile<P>::depth) {
    const Index length = std::min(Tile<P>::depth, depth - x);
    const bool to_part = add || x > 0;
    pack_rows<P>(a, row, rows, k + x, length, packed);
    const T* const from = length > 0 ? b.at(k + x, column) : b.data;  // null where there is no element
    skinny_sum<P>(rows, length, packed, from, b.stride, columns, to_part ? part : sums, stride);
    if (to_part) add_sums(rows * stride, part, sums);
  }
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
