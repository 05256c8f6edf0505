#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/core/types.hpp"

/// The innermost loops of every product: packing, the register tile, and the sum over few rows.
///
/// All paths compute the sum over one block of at most `depth` values of k as one chain of multiply-adds from zero,
///
///     s = 0;   s = madd(a[k], b[k], s) for k = first, first + 1, …                                          (1)
///
/// so that an element's bits depend on its row of A and its column of B alone.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// ⌈a / b⌉ of counts
inline Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

/// A matrix seen as lines along the depth k of a product: rows of A, columns of B.
///
///     element (line, k) = lines_are_rows ? data[row(line), k] : data[row(k), line]                            (2)
template <class T>
struct Operand {
  const T* data = nullptr;
  Index stride = 0;  // elements between rows in memory
  bool lines_are_rows = true;
  const Index* rows = nullptr;  // optional gather: row r of the operand is row rows[r] of data

  const T* at(Index row, Index column) const { return data + (rows ? rows[row] : row) * stride + column; }
};

template <class T>
struct Tile {
  static constexpr int size = Register<T>::size;
  // Two registers of columns; as many rows as leave four registers for B and a broadcast of A.
  static constexpr int columns = 2 * size;
  static constexpr int rows = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 14 : 6;
  // The length of a chain (1). A panel of B [depth, columns] stays in the first-level cache. Part of the definition of
  // a result, hence the same on every target.
  static constexpr Index depth = 256;
  // Rows of packed A lie this far apart: a cache line more than a power of two, which would put them all in one set.
  static constexpr Index stride = depth + 64 / sizeof(T);
};

/// Memory that is touched soon, asked for one cache line at a time while a tile computes: a burst of requests would hold
/// up the loads of the tile itself. A tile asks for depth / 2 lines.
struct Ahead {
  static constexpr Index line = 64;

  struct Lines {
    const char* next;
    Index run, jump;  // lines that follow each other, 0: all; bytes from the last of them to the next run
  };
  Lines first;
  Index count = 0;  // how many of the first, 0: all
  Lines then{};

  /// Nothing but a line that is in the cache.
  static Ahead nothing(const void* present) { return {{static_cast<const char*>(present), 1, 0}}; }
  /// Lines one after the other, from part t of n of `count` elements on.
  template <class T>
  static Ahead part(const T* data, Index count, Index t, Index n) {
    return {{reinterpret_cast<const char*>(data + t * count / n), 0, 0}};
  }
  /// Rows of memory, from part t of n of their lines on.
  /// @param bytes   of a row, at least 1
  /// @param stride  bytes from row to row
  static Ahead rows(const void* data, Index rows, Index bytes, Index stride, Index t, Index n) {
    const Index run = (bytes + line - 1) / line, row = t * (rows * run) / n / run;
    return {{static_cast<const char*>(data) + row * stride, run, stride - (run - 1) * line}};
  }
  /// Rows of memory, then this.
  Ahead after_rows(const void* data, Index rows, Index bytes, Index stride) const {
    Ahead all = Ahead::rows(data, rows, bytes, stride, 0, 1);
    all.count = rows * all.first.run;
    all.then = first;
    return all;
  }
};

/// to[r, c] = row r0 + r, column c0 + c of the operand's memory.
template <class T>
void copy_block(const Operand<T>& from, Index r0, Index rows, Index c0, Index columns, T* to, Index stride) {
  constexpr Index size = Register<T>::size;
  for (Index r = 0; r < rows; ++r, to += stride) {
    const T* source = from.at(r0 + r, c0);
    Index c = 0;
    for (; c + size <= columns; c += size) Register<T>::load(source + c).store(to + c);
    for (; c < columns; ++c) to[c] = source[c];
  }
}

/// to[c, r] = row r0 + r, column c0 + c of the operand's memory.
template <class T>
void transpose_block(const Operand<T>& from, Index r0, Index rows, Index c0, Index columns, T* to, Index stride) {
  using Packet = typename Register<T>::Packet;
  constexpr int size = Register<T>::size, worth = (size + 1) / 2;  // columns worth a transposition of registers
  Index r = 0;
  for (; r + size <= rows; r += size) {
    const T* source[size];
    for (int i = 0; i < size; ++i) source[i] = from.at(r0 + r + i, c0);
    Index c = 0;
    for (; c + worth <= columns; c += size) {
      const int count = static_cast<int>(columns - c < size ? columns - c : size);
      Packet block[size];
      for (int i = 0; i < size; ++i) block[i] = Register<T>::load(source[i] + c, count).packet();
      packet::transpose<T>(block);
      for (int i = 0; i < count; ++i) packet::store(to + (c + i) * stride + r, block[i]);
    }
    for (; c < columns; ++c)
      for (int i = 0; i < size; ++i) to[c * stride + r + i] = source[i][c];
  }
  const int left = static_cast<int>(rows - r);
  for (int i = 0; i < left; ++i) {
    const T* source = from.at(r0 + r + i, c0);
    for (Index c = 0; c < columns; ++c) to[c * stride + r + i] = source[c];
  }
}

/// Rows of A for the register tile: to[i, k] with rows Tile::stride apart.
template <class T>
void pack_rows(const Operand<T>& a, Index line, Index lines, Index k, Index depth, T* to) {
  a.lines_are_rows ? copy_block(a, line, lines, k, depth, to, Tile<T>::stride)
                   : transpose_block(a, k, depth, line, lines, to, Tile<T>::stride);
}

/// Columns of B for the register tile: consecutive panels [depth, Tile::columns], the last one filled up with zeros.
template <class T>
void pack_panels(const Operand<T>& b, Index line, Index lines, Index k, Index depth, T* to) {
  constexpr Index width = Tile<T>::columns, group = 16;
  const Index whole = lines / width * width, panel = depth * width;
  if (b.lines_are_rows) {
    for (Index j = 0; j < whole; j += width) transpose_block(b, line + j, width, k, depth, to + j * depth, width);
  } else {
    // A few rows at a time, so that memory is read in long runs.
    for (Index x = 0; x < depth; x += group)
      for (Index j = 0; j < whole; j += width)
        copy_block(b, k + x, depth - x < group ? depth - x : group, line + j, width, to + j * depth + x * width, width);
  }
  if (whole == lines) return;
  T* last = to + whole * depth;
  for (Index i = 0; i < panel; ++i) last[i] = 0;
  b.lines_are_rows ? transpose_block(b, line + whole, lines - whole, k, depth, last, width)
                   : copy_block(b, k, depth, line + whole, lines - whole, last, width);
}

/// Rows of a panel [depth, Tile::columns] to come, packed one at a time while a tile computes: they cost it little more than
/// the memory they come from. A tile packs depth / 2 rows at most.
template <class T>
struct PackAhead {
  const T* from = nullptr;
  Index stride = 0;  // elements from row to row
  T* to = nullptr;
  Index rows = 0;
};

/// sums[R, Tile::columns], rows sums_stride apart, = or += the chains (1) of R rows of packed A and one panel of B, of its
/// first C registers.
template <class T, int R, int C>
[[gnu::noinline]] void tile_sum(Index depth, const T* a, const T* b, T* sums, Index sums_stride, bool add,
                                const Ahead& ahead, const PackAhead<T>& pack) {
  using Packet = typename Register<T>::Packet;
  constexpr int size = Register<T>::size;
  Packet s[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) s[i][j] = packet::filled(T(0));
  const auto step = [&](Index k) __attribute__((always_inline)) {
    Packet y[C];
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) y[j] = packet::load(b + Tile<T>::columns * k + j * size);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Packet x = packet::filled(a[i * Tile<T>::stride + k]);
#pragma GCC unroll 2
      for (int j = 0; j < C; ++j) s[i][j] = packet::madd<T>(x, y[j], s[i][j]);
    }
  };
  Ahead::Lines lines = ahead.first;
  Index k = 0, left = lines.run, count = ahead.count;
  const T* from = pack.from;
  T* packed = pack.to;
  Index rows_left = pack.rows;
  for (; k + 2 <= depth; k += 2) {
    __builtin_prefetch(lines.next, 0, 2);
    lines.next += --left == 0 ? lines.jump : Ahead::line;
    left = left == 0 ? lines.run : left;
    if (--count == 0) {
      lines = ahead.then;
      left = lines.run;
    }
    if (rows_left > 0) {
      packet::store(packed, packet::load(from));
      packet::store(packed + size, packet::load(from + size));
      from += pack.stride;
      packed += Tile<T>::columns;
      --rows_left;
    }
    step(k);
    step(k + 1);
  }
  if (k < depth) step(k);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) {
      T* to = sums + i * sums_stride + j * size;
      packet::store(to, add ? packet::load(to) + s[i][j] : s[i][j]);
    }
}

/// tile_sum for 1 to Tile::rows rows. A register of the panel beyond `columns` is left out.
template <class T>
void tile_sum(Index rows, Index columns, Index depth, const T* a, const T* b, T* sums, Index sums_stride, bool add,
              const Ahead& ahead, const PackAhead<T>& pack = {}) {
  using Kernel = void (*)(Index, const T*, const T*, T*, Index, bool, const Ahead&, const PackAhead<T>&);
  static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<std::array<Kernel, 2>, sizeof...(R)>{{{&tile_sum<T, R + 1, 1>, &tile_sum<T, R + 1, 2>}...}};
  }
  (std::make_integer_sequence<int, Tile<T>::rows>{});
  kernels[static_cast<std::size_t>(rows - 1)][columns > Tile<T>::size](depth, a, b, sums, sums_stride, add, ahead, pack);
}

/// Up to here the chains (1) of a product are so short that it is bound by reading and writing c.
inline constexpr Index few_terms = 32;

/// c[rows, columns] = or += the chains (1) of at most few_terms k, row by row of c: one stream of memory.
/// @param a, b  their lines are columns: both are read in place
template <class T>
[[gnu::noinline]] void few_terms_sum(const Operand<T>& a, Index line, Index rows, const Operand<T>& b, Index column,
                                     Index columns, Index depth, bool add, T* c, Index c_stride) {
  using V = Register<T>;
  const T *x[few_terms], *y[few_terms];
  for (Index k = 0; k < depth; ++k) {
    x[k] = a.at(k, line);
    y[k] = b.at(k, column);
  }
  const auto step = [&]<int R>(std::integral_constant<int, R>, Index i, Index j, int count) {
    V s[R];
    for (int r = 0; r < R; ++r) s[r] = V(T(0));
    for (Index k = 0; k < depth; ++k)
      for (int r = 0; r < R; ++r) s[r] = madd(V(x[k][i]), V::load(y[k] + j + r * V::size, count), s[r]);
    T* to = c + i * c_stride + j;
    for (int r = 0; r < R; ++r, to += V::size) (add ? V::load(to, count) + s[r] : s[r]).store(to, count);
  };
  constexpr Index wide = 8 * V::size;
  for (Index i = 0; i < rows; ++i) {
    Index j = 0;
    for (; j + wide <= columns; j += wide) step(std::integral_constant<int, 8>{}, i, j, V::size);
    for (; j < columns; j += V::size)
      step(std::integral_constant<int, 1>{}, i, j, static_cast<int>(std::min<Index>(V::size, columns - j)));
  }
}

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
    // Asked for early: rows are far apart, and no prefetcher finds the next ones.
    constexpr Index ahead = 16 * V::size;
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
[[gnu::noinline]] void few_rows_sum(Index rows, Index depth, const T* a, const T* b, Index b_stride, Index columns,
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

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
