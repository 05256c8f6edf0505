#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/register_access.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_ABI::cpu {

/// sums[N][R, Tile::columns] = or += the chains (1) of tile.hpp of R rows of packed A and N panels of B that lie one
/// after the other: more sums at a time than one panel has, where few rows would wait for each other's additions.
template <class P, int R, int N, class W>
[[gnu::noinline]] void skinny_panels_sum(Index depth, const SumOf<P>* a, const W* b, SumOf<P>* sums, bool add) {
  using T = SumOf<P>;
  using V = Register<T>;
  constexpr int columns = Tile<P>::columns, width = 2 * N;
  V s[R][width];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) s[i][j] = V(T(0));
  // Lines are prefetched, of half as wide weights twice as many; behind the last of these panels lie the next ones.
  constexpr Index lines = tuning.prefetched_lines * static_cast<Index>(sizeof(T) / sizeof(W)),
                  steps =
                      std::max<Index>(lines * Prefetch::line / (width * V::size * static_cast<Index>(sizeof(W))), 1);
  constexpr int registers_of_line = V::size * sizeof(W) < Prefetch::line ? 2 : 1;
  for (Index k = 0; k < depth; ++k) {
    const W* ahead = b + (k + steps + (k + steps < depth ? 0 : (N - 1) * depth)) * columns;
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      if (j % registers_of_line == 0) __builtin_prefetch(ahead + j / 2 * depth * columns + j % 2 * V::size, 0, 3);
      const V w = RegisterAccess<T>{}.load(b + (j / 2 * depth + k) * columns + j % 2 * V::size);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i)
        s[i][j] = V(multiply_add<P>(V(a[i * Tile<P>::stride + k]).packet(), w.packet(), s[i][j].packet()));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < width; ++j) {
      T* to = sums + (j / 2 * R + i) * columns + j % 2 * V::size;
      (add ? V::load(to) + s[i][j] : s[i][j]).store(to);
    }
}
/// skinny_panels_sum of 1 to tuning.skinny_panel_rows rows and any number of panels.
/// @param depth  words of a row
template <class P, class W>
void skinny_panels_sum(Index rows, Index panels, Index depth, const SumOf<P>* a, const W* b, SumOf<P>* sums, bool add) {
  const auto of_rows = [&]<int R>(std::integral_constant<int, R>) {
    constexpr int most = R == 1 ? 4 : R <= Tile<P>::rows / 3 ? 2 : 1;  // as many sums as there are registers for
    Index p = 0;
    for (; p + most <= panels; p += most)
      skinny_panels_sum<P, R, most>(depth, a, b + p * depth * Tile<P>::columns, sums + p * R * Tile<P>::columns, add);
    for (; p < panels; ++p)
      skinny_panels_sum<P, R, 1>(depth, a, b + p * depth * Tile<P>::columns, sums + p * R * Tile<P>::columns, add);
  };
  [&]<int... R>(std::integer_sequence<int, R...>) {
    ((rows == R + 1 ? of_rows(std::integral_constant<int, R + 1>{}) : void()), ...);
  }
  (std::make_integer_sequence<int, static_cast<int>(tuning.skinny_panel_rows)>{});
}

}  // namespace gatefold::inline GATEFOLD_CPU_ABI::cpu
