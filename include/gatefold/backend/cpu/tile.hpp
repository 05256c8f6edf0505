#pragma once

#include <array>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/types.hpp"

/// The innermost loop of every product of more than a few rows.
///
/// It and its relatives (skinny.hpp, skinny_panels.hpp, rank_update.hpp) compute the sum over one block of at most
/// Tile::depth values of k as one chain of multiply-adds from zero,
///
///     s = 0;   s = madd(a[k], b[k], s) for k = first, first + 1, …                                          (1)
///
/// (of words: where these are pairs of bfloat16, of k + 1 and then of k, for k = first, first + 2, …)
/// so that an element's bits depend on its row of A and its column of B alone.
namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// sums[R, Tile::columns], rows sums_stride apart, = or += the chains (1) of R rows of packed A and one panel of B, of
/// its first C registers.
/// @param depth  words of a row
template <class P, int R, int C>
[[gnu::noinline]] void tile_sum(Index depth, const SumOf<P>* a, const SumOf<P>* b, SumOf<P>* sums, Index sums_stride,
                                bool add, const Prefetch& prefetch, const PanelCopy<P>& copy) {
  using T = SumOf<P>;
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
    for (int j = 0; j < C; ++j) y[j] = packet::load(b + Tile<P>::columns * k + j * size);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Packet x = packet::filled(a[i * Tile<P>::stride + k]);
#pragma GCC unroll 2
      for (int j = 0; j < C; ++j) s[i][j] = multiply_add<P>(x, y[j], s[i][j]);
    }
  };
  Prefetch::Lines lines = prefetch.first;
  Index k = 0, left = lines.run, count = prefetch.count;
  PanelCopy<P> panel = copy;
  for (; k + 2 <= depth; k += 2) {
    __builtin_prefetch(lines.next, 0, 2);
    lines.next += --left == 0 ? lines.jump : Prefetch::line;
    left = left == 0 ? lines.run : left;
    if (--count == 0) {
      lines = prefetch.then;
      left = lines.run;
    }
    if (panel.rows > 0) panel.next();
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
template <class P>
void tile_sum(Index rows, Index columns, Index depth, const SumOf<P>* a, const SumOf<P>* b, SumOf<P>* sums,
              Index sums_stride, bool add, const Prefetch& prefetch, const PanelCopy<P>& copy = {}) {
  using T = SumOf<P>;
  using Kernel = void (*)(Index, const T*, const T*, T*, Index, bool, const Prefetch&, const PanelCopy<P>&);
  static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<std::array<Kernel, 2>, sizeof...(R)>{{{&tile_sum<P, R + 1, 1>, &tile_sum<P, R + 1, 2>}...}};
  }
  (std::make_integer_sequence<int, Tile<P>::rows>{});
  kernels[static_cast<std::size_t>(rows - 1)][columns > Tile<P>::size](depth, a, b, sums, sums_stride, add, prefetch,
                                                                       copy);
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
