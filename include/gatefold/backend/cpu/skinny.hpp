#pragma once

#include <algorithm>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/types.hpp"

/// Products of a few rows with weights that are read where they lie: packing would cost more than it saves.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// s[R, columns] continued by K steps of the chains (1), from B in place: reads each weight once, in long runs.
/// @param a     packed rows, Tile::stride apart
/// @param b     [K, b_stride] in
/// @param sums  [R, sums_stride] in, out  writable up to the next whole register
template <class T, int R, int K>
void axpy(const T* a, const T* b, Index b_stride, Index columns, T* sums, Index sums_stride) {
  using V = Register<T>;
  V x[R][K];
  for (int i = 0; i < R; ++i)
    for (int k = 0; k < K; ++k) x[i][k] = V(a[i * Tile<T>::stride + k]);
  const auto step = [&](Index j, int count) {
    // Rows are far apart: no prefetcher of the machine finds the next ones.
    constexpr Index ahead = tuning.prefetched_registers * V::size;
    const T* next = b + j + ahead + (j + ahead < columns ? 0 : K * b_stride - columns);
    V y[K];
    for (int k = 0; k < K; ++k) {
      y[k] = V::load(b + k * b_stride + j, count);
      __builtin_prefetch(next + k * b_stride, 0, 3);
    }
    for (int i = 0; i < R; ++i) {
      V s = V::load(sums + i * sums_stride + j);
      for (int k = 0; k < K; ++k) s = madd(x[i][k], y[k], s);
      s.store(sums + i * sums_stride + j);
    }
  };
  Index j = 0;
  for (; j + V::size <= columns; j += V::size) step(j, V::size);
  if (j < columns) step(j, static_cast<int>(columns - j));
}

/// sums[rows, sums_stride] = the chains (1) of a few rows, from B in place.
template <class T>
[[gnu::noinline]] void skinny_sum(Index rows, Index depth, const T* a, const T* b, Index b_stride, Index columns,
                                  T* sums, Index sums_stride) {
  for (Index i = 0; i < rows * sums_stride; ++i) sums[i] = 0;
  const auto steps = [&]<int K>(std::integral_constant<int, K>, Index k) {
    using Kernel = void (*)(const T*, const T*, Index, Index, T*, Index);
    constexpr Kernel kernels[] = {axpy<T, 1, K>, axpy<T, 2, K>, axpy<T, 3, K>, axpy<T, 4, K>};
    for (Index i = 0; i < rows; i += 4)
      kernels[std::min<Index>(rows - i, 4) - 1](a + i * Tile<T>::stride + k, b + k * b_stride, b_stride, columns,
                                                sums + i * sums_stride, sums_stride);
  };
  Index k = 0;
  if (rows <= 2)
    for (; k + 8 <= depth; k += 8) steps(std::integral_constant<int, 8>{}, k);
  for (; k + 4 <= depth; k += 4) steps(std::integral_constant<int, 4>{}, k);
  for (; k < depth; ++k) steps(std::integral_constant<int, 1>{}, k);
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
template <class T>
void skinny_product(const Operand<T>& a, Index row, Index rows, const Operand<T>& b, Index column, Index columns,
                    Index k, Index depth, bool add, T* sums, Index stride, T* packed, T* part) {
  for (Index x = 0; x == 0 || x < depth; x += Tile<T>::depth) {
    const Index length = std::min(Tile<T>::depth, depth - x);
    const bool to_part = add || x > 0;
    pack_rows<T>(a, row, rows, k + x, length, packed);
    const T* const from = length > 0 ? b.at(k + x, column) : b.data;  // null where there is no element
    skinny_sum(rows, length, packed, from, b.stride, columns, to_part ? part : sums, stride);
    if (to_part) add_sums(rows * stride, part, sums);
  }
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
