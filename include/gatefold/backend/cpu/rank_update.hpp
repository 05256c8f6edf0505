#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Computes a matrix product c[rows, columns] in which each sum s has few terms (at most tuning.rank_update_depth): c =
/// 0 + s, or c += s. tile.hpp, eq. (1) defines the sum s. With so few terms, most of the work is reading and writing c.
/// Therefore this function computes one row of c after the other, and reads and writes c only once, in the order of
/// memory.
/// @param a, b   the two factors, with one row in memory for each term; rows of words (words.hpp) are read in place
/// @param depth  number of these rows in `a` and `b`
/// @param into   Into::stream only if every register of c is whole and aligned
template <class P>
[[gnu::noinline]] void rank_update(const Operand<SumOf<P>>& a, Index line, Index rows, const Operand<SumOf<P>>& b,
                                   Index column, Index columns, Index depth, Into into, SumOf<P>* c, Index c_stride) {
  using T = SumOf<P>;
  using V = Register<T>;
  constexpr std::size_t most{tuning.rank_update_depth};
  const T *x[most], *y[most];
  for (Index k = 0; k < depth; ++k) {
    x[k] = a.at(k, line);
    y[k] = b.at(k, column);
  }
  const auto step = [&]<int R>(std::integral_constant<int, R>, Index i, Index j, int count) {
    V s[std::size_t{R}];
    for (int r = 0; r < R; ++r) s[r] = V(T(0));
    for (Index k = 0; k < depth; ++k)
      for (int r = 0; r < R; ++r)
        s[r] = V(multiply_add<P>(V(x[k][i]).packet(), V::load(y[k] + j + r * V::size, count).packet(), s[r].packet()));
    T* to = c + i * c_stride + j;
    for (int r = 0; r < R; ++r, to += V::size) {
      const V sum = (into == Into::add ? V::load(to, count) : V(T(0))) + s[r];
      if (into == Into::stream)
        packet::stream(to, sum.packet());
      else
        sum.store(to, count);
    }
  };
  constexpr Index wide = 8 * V::size;
  for (Index i = 0; i < rows; ++i) {
    Index j = 0;
    for (; j + wide <= columns; j += wide) step(std::integral_constant<int, 8>{}, i, j, V::size);
    for (; j < columns; j += V::size)
      step(std::integral_constant<int, 1>{}, i, j, static_cast<int>(std::min<Index>(V::size, columns - j)));
  }
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
