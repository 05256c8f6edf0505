#pragma once

#include <algorithm>
#include <cstddef>
#include <gatefold/gatefold.hpp>

/// Matrix products with few columns or rows. They hold the sums in registers and do not copy the factors.
///
/// The library's products copy both factors into tiles, which saves time if a copy is used often. Here, with eight
/// filters, each copy would be used once. The results equal those of the library bit for bit, because the order of the
/// additions is equal. A sum consists of chains of at most kChain multiply-adds. Each chain begins at zero, and the
/// chains are added in order.
namespace studies::expert_count {

using namespace gatefold;

inline constexpr Index kChain = cpu::Tile<float>::depth;

/// Returns the number of used elements in register `i`, if a row of `columns` elements is spread over registers.
template <class T>
int in_register(Index columns, Index i) {
  constexpr Index size = cpu::Register<T>::size;
  return static_cast<int>(std::min(size, columns - i * size));
}
template <class T>
Index registers_of(Index columns) {
  constexpr Index size = cpu::Register<T>::size;
  return (columns + size - 1) / size;
}

/// Computes s[r] = Σ_k x[r][k] w[k, :] for R rows of x. Adds from k = 0 to depth − 1. Computes only the columns of C
/// registers, and at most `columns` columns.
/// @param w  [depth, stride]
template <int R, int C, class T>
void row_chains(const T* const* x, Index depth, const T* w, Index stride, Index columns, cpu::Register<T> (&s)[R][C]) {
  using V = cpu::Register<T>;
  // The sums are in a local array, because the compiler would store elements of s in every step.
  V own[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) own[r][c] = V(T(0));
  const int last = in_register<T>(columns, C - 1);
#pragma GCC unroll 2
  for (Index k = 0; k < depth; ++k) {
    V y[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) y[c] = V::load(w + k * stride + c * V::size, c + 1 < C ? V::size : last);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) own[r][c] = madd(V(x[r][k]), y[c], own[r][c]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) s[r][c] = own[r][c];
}

/// Divides the range 0 … n − 1 into blocks of the given sizes, and calls f<size>(first) for each block. `Sizes` are in
/// descending order down to 1.
template <int... Sizes, class F>
void in_steps(Index n, const F& f) {
  Index i = 0;
  const auto take = [&]<int size>() {
    for (; i + size <= n; i += size) f.template operator()<size>(i);
  };
  (take.template operator()<Sizes>(), ...);
}

/// Prefetches `count` elements at p into the cache.
template <class T>
void prefetch_range(const T* p, Index count) {
  constexpr Index line = 64 / sizeof(T);
  for (Index i = 0; i < count; i += line) __builtin_prefetch(p + i, 0, 2);
}

/// Adds Σ_r d[r, j] x[r][from + i] to c[j, i], for J rows of c and all r < rows, in the order of r. Computes only the
/// columns i of C registers, and at most `columns` columns.
template <int J, int C, class T>
void outer_chain(Index rows, const T* const* x, Index from, const T* d, Index d_stride, Index columns, T* c,
                 Index c_stride) {
  using V = cpu::Register<T>;
  V s[J][C];
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j)
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) s[j][i] = V(T(0));
  const int last = in_register<T>(columns, C - 1);
  constexpr Index ahead = 12;  // rows to prefetch early, because hardware cannot prefetch scattered rows
  for (Index r = 0; r < rows; ++r, d += d_stride) {
    prefetch_range(x[r + ahead < rows ? r + ahead : r] + from, C * V::size);
    V y[C];
#pragma GCC unroll 4
    for (int i = 0; i + 1 < C; ++i) y[i] = V::load(x[r] + from + i * V::size);
    y[C - 1] = V::load(x[r] + from + (C - 1) * V::size, last);
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j)
#pragma GCC unroll 4
      for (int i = 0; i < C; ++i) s[j][i] = madd(V(d[j]), y[i], s[j][i]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < J; ++j)
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) {
      const int count = i + 1 < C ? V::size : last;
      T* to = c + j * c_stride + i * V::size;
      (V::load(to, count) + s[j][i]).store(to, count);
    }
}

/// Adds Σ_r d[r, j] x[r][i] to c[j, i], as sums over kChain rows, which are added in order.
/// @param x  [rows] pointers to rows of `columns` elements
/// @param d  [rows, heads]
/// @param c  [heads, columns] in, out
template <class T>
void outer_sum(Index rows, const T* const* x, Index columns, const T* d, Index heads, T* c) {
  for (Index r = 0; r < rows; r += kChain) {
    const Index count = std::min(kChain, rows - r);
    const auto strip = [&]<int C>(Index i) {
      const Index from = i * cpu::Register<T>::size;
      in_steps<8, 4, 2, 1>(heads, [&]<int J>(Index j) {
        outer_chain<J, C>(count, x + r, from, d + r * heads + j, heads, columns - from, c + j * columns + from,
                          columns);
      });
    };
    const Index all = registers_of<T>(columns), pairs = all % 3 == 1 && all > 1 ? 2 : all % 3 == 2 ? 1 : 0;
    Index i = 0;
    for (; i + 2 * pairs + 3 <= all; i += 3) strip.template operator()<3>(i);
    for (; i + 2 <= all; i += 2) strip.template operator()<2>(i);
    if (i < all) strip.template operator()<1>(i);
  }
}

/// Computes z = x w for `rows` rows of x. Each element of z is a sum of chains, which are added in order. A chain is a
/// sum over kChain columns of x.
/// @param w  [depth, columns],  z [rows, columns] out
template <class T>
void product_of_rows(Index rows, const T* const* x, Index depth, const T* w, Index columns, T* z) {
  using V = cpu::Register<T>;
  const Index all = registers_of<T>(columns);
  for (Index k = 0; k < depth; k += kChain)
    for (Index c = 0; c < all; c += 2) {
      const auto tiles = [&]<int C>() {
        const Index from = c * V::size, here = columns - from;
        in_steps<12, 4, 1>(rows, [&]<int R>(Index r) {
          const T* at[R];
          for (int i = 0; i < R; ++i) at[i] = x[r + i] + k;
          V s[R][C];
          row_chains<R, C, T>(at, std::min(kChain, depth - k), w + k * columns + from, columns, here, s);
#pragma GCC unroll 16
          for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
            for (int b = 0; b < C; ++b) {
              const int count = in_register<T>(here, b);
              T* to = z + (r + i) * columns + from + b * V::size;
              (k > 0 ? V::load(to, count) + s[i][b] : s[i][b]).store(to, count);
            }
        });
      };
      c + 2 <= all ? tiles.template operator()<2>() : tiles.template operator()<1>();
    }
}

}  // namespace studies::expert_count
