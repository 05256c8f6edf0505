#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "gatefold/backend/cpu/batch.hpp"
#include "gatefold/backend/cpu/epilogue.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Computes matrix products of a few rows with matrices B that are not packed, for example the attention scores and the
/// context of one query. Such a product takes as long as it takes to read B. Therefore this class reads each part of B
/// once, in the order of memory, and does not pack it.
/// @order  the order of Product, so the results have the same bits
template <class T>
class FewRows {
 public:
  /// Returns whether `run` can compute a batch. Sums must have at least one term, must overwrite c, and must not run
  /// over slots (Slots::are_depth). No expert may have more than 8 rows. The rows of A must be contiguous, and B
  /// neither packed nor gathered. The columns of B must be contiguous in memory, or a row of B must fit into 8 vector
  /// registers. For wider rows, use Product, which also reads them in place.
  static bool fits(const Batch<T>& batch) {
    const Problem<T>& all = batch.all;
    if (batch.slots == Batch<T>::Slots::are_depth || batch.accumulate || !all.a.lines_are_rows) return false;
    if (all.packed || all.b.rows || all.depth == 0 || (!all.b.lines_are_rows && all.columns > strip)) return false;
    for (Index e = 0; e < batch.experts; ++e)
      if (batch[e].rows > most) return false;
    return true;
  }
  /// Computes the matrix products c = a b of all experts of a batch for which fits() returns true.
  /// @cost  2·rows·columns·depth flop, with rows rounded up to a power of two; no scratch memory
  template <class Context>
  static void run(Context& ctx, const Batch<T>& batch, const Epilogue<T>& epilogue);

 private:
  using V = Register<T>;
  using Packet = typename V::Packet;
  static constexpr int size = V::size;
  // most: the largest number of rows. strip: the largest number of columns of a task. chunk: the number of rows of B
  // that stay in the first-level cache while a task multiplies by all their columns.
  static constexpr Index most = 8, strip = 8 * size, chunk = 16;
  // The number of memory rows of B by which the loops prefetch ahead. Tried: half of this number; with keys of 128
  // floats, the loop was 10 % slower.
  static constexpr Index ahead = 2 * chunk;
  // The function `across` computes the sums of this many vector registers together, for each of R rows of A. A register
  // has the sums of `size` neighbouring columns of B.
  template <int R>
  static constexpr int together = R > 4 ? 2 : 4;

  static void task(const Problem<T>& p, Index e, Index x, const Epilogue<T>& epilogue);
  template <int R>
  static void along(const T* a, const T* b, Index stride, Index columns, Index depth, T* sums);
  template <int R>
  static void across(const T* a, const T* b, Index stride, Index columns, Index depth, T* sums);
  template <int R, int C>
  static void continue_chains(const T* a, const T* b, Index stride, int count, Index depth, bool begins, T* sums);
};

// run() is defined outside the class, because it would otherwise be inline, and an optimising compiler would compile it
// in each source file in spite of `extern template` (see primitives.hpp).
template <class T>
template <class Context>
void FewRows<T>::run(Context& ctx, const Batch<T>& batch, const Epilogue<T>& epilogue) {
  const Index strips = divide_up(batch.all.columns, strip);
  Index rows = 0;
  for (Index e = 0; e < batch.experts; ++e) rows += batch[e].rows;
  const bool alone = rows * batch.all.columns * batch.all.depth < tuning.serial_work;
  const int threads = alone ? 1 : ctx.threads_for([&] { return batch.nanoseconds(); });
  parallel_for(ctx.executor(), threads, batch.experts * strips, [&](Index number, int) {
    const Index e = number / strips;
    if (const Problem<T> p = batch[e]; p.rows > 0) task(p, e, number % strips * strip, epilogue);
  });
}

/// Computes the columns of expert e's result from column x on, at most `strip` columns.
template <class T>
void FewRows<T>::task(const Problem<T>& p, Index e, Index x, const Epilogue<T>& epilogue) {
  constexpr std::size_t elements = std::size_t{most} * std::size_t{strip};
  alignas(64) T a[std::size_t{most} * std::size_t{Tile<T>::stride}], sums[elements], chains[elements];
  using Kernel = void (*)(const T*, const T*, Index, Index, Index, T*);
  static constexpr std::array<std::array<Kernel, 2>, 4> kernels{
      {{&across<1>, &along<1>}, {&across<2>, &along<2>}, {&across<4>, &along<4>}, {&across<8>, &along<8>}}};
  const auto rows = static_cast<unsigned>(p.rows);
  const Kernel kernel = kernels[std::size_t(std::bit_width(rows - 1))][p.b.lines_are_rows];
  std::fill(a + p.rows * Tile<T>::stride, a + Index(std::bit_ceil(rows)) * Tile<T>::stride, T(0));
  const Index columns = std::min(strip, p.columns - x);
  for (Index k = 0; k < p.depth; k += Tile<T>::depth) {
    const Index depth = std::min(Tile<T>::depth, p.depth - k);
    pack_rows<T>(p.a, 0, p.rows, k, depth, a);
    kernel(a, p.b.lines_are_rows ? p.b.at(x, k) : p.b.at(k, x), p.b.stride, columns, depth, k > 0 ? chains : sums);
    if (k == 0) continue;
    for (Index i = 0; i < p.rows * strip; i += strip)
      for (Index j = i; j < i + columns; j += size) (V::load(sums + j) + V::load(chains + j)).store(sums + j);
  }
  epilogue.run(epilogue.epilogue, sums, SumsLayout{strip, strip, 0}, p.rows, columns, e, p.first, x, p.c + x,
               p.c_stride);
}

/// Computes one chain of multiply-adds (tile.hpp, eq. (1)) for each of R rows of packed A and each of `columns` columns
/// of B, if the columns are contiguous in memory. Transposes B in vector registers, as many terms at a time as a
/// register has lanes.
/// @param b       [columns, depth] in, rows `stride` elements apart
/// @param sums    [R, strip] out; whole registers are written
template <class T>
template <int R>
[[gnu::noinline]] void FewRows<T>::along(const T* a, const T* b, Index stride, Index columns, Index depth, T* sums) {
  for (Index x = 0; x < columns; x += size, b += size * stride) {
    const Index last = std::min<Index>(columns - x, size) - 1;
    Packet s[std::size_t{R}];
    for (int r = 0; r < R; ++r) s[r] = packet::filled(T(0));
    const auto step = [&](Index k, int count) __attribute__((always_inline)) {
      Packet y[std::size_t{size}];
#pragma GCC unroll 16
      for (int i = 0; i < size; ++i) {
        const T* const from = b + std::min<Index>(i, last) * stride + k;
        y[i] = V::load(from, count).packet();
        __builtin_prefetch(from + ahead * stride, 0, 2);
      }
      packet::transpose<T>(y);
#pragma GCC unroll 16
      for (int i = 0; i < size; ++i) {
        if (i >= count) break;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = packet::madd<T>(packet::filled(a[r * Tile<T>::stride + k + i]), y[i], s[r]);
      }
    };
    Index k = 0;
    for (; k + size <= depth; k += size) step(k, size);
    if (k < depth) step(k, static_cast<int>(depth - k));
    for (int r = 0; r < R; ++r) packet::store(sums + r * strip + x, s[r]);
  }
}

/// Computes the same sums as `along` if the rows of B are contiguous in memory.
/// @param b  [depth, columns] in, rows `stride` elements apart
template <class T>
template <int R>
[[gnu::noinline]] void FewRows<T>::across(const T* a, const T* b, Index stride, Index columns, Index depth, T* sums) {
  constexpr int wide = together<R> * size;
  for (Index k = 0; k < depth; k += chunk) {
    const Index rows = std::min(chunk, depth - k);
    Index x = 0;
    for (; x + wide <= columns; x += wide)
      continue_chains<R, together<R>>(a + k, b + k * stride + x, stride, size, rows, k == 0, sums + x);
    for (; x < columns; x += size)
      continue_chains<R, 1>(a + k, b + k * stride + x, stride, static_cast<int>(std::min<Index>(columns - x, size)),
                            rows, k == 0, sums + x);
  }
}

/// Adds `depth` terms to the chains of R rows of A and the columns of B in C vector registers. The last register has
/// `count` columns.
/// @param begins  whether these are the first terms of the chains, which then start at 0
template <class T>
template <int R, int C>
[[gnu::noinline]] void FewRows<T>::continue_chains(const T* a, const T* b, Index stride, int count, Index depth,
                                                   bool begins, T* sums) {
  Packet s[std::size_t{R}][std::size_t{C}];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) s[r][j] = begins ? packet::filled(T(0)) : packet::load(sums + r * strip + j * size);
  for (Index k = 0; k < depth; ++k, b += stride)
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const Packet y = (C == 1 ? V::load(b, count) : V::load(b + j * size)).packet();
      __builtin_prefetch(b + ahead * stride + j * size, 0, 3);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) s[r][j] = packet::madd<T>(packet::filled(a[r * Tile<T>::stride + k]), y, s[r][j]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) packet::store(sums + r * strip + j * size, s[r][j]);
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
