#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// The innermost loop of every matrix product A B, which defines the order of its sums.
///
/// The terms of a sum, numbered by k, are divided into blocks of at most Tile::depth terms. sum_tile, and rank_update
/// (product.hpp) for few terms, compute the sum of one block as one chain of multiply-adds from zero:
///
///     s = 0;   s = madd(a[k], b[k], s) for k = first, first + 1, …                                          (1)
///
/// If words (packed elements) are pairs of bfloat16, k grows by 2, and a step adds the term of k + 1 before the term of
/// k. The matrix unit (amx.hpp) takes 32 terms at a time. It computes one chain of the terms with even k and one of the
/// terms with odd k, and adds the sum of the two chains to s. Because these orders are fixed, the bits of an element of
/// A B depend only on its row of A and its column of B.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Prefetches memory while the innermost loop of a product computes. Each call of next() prefetches one cache line. The
/// loop calls next() once for every two words (packed elements) of a row.
class LookAhead {
 public:
  explicit LookAhead(const Prefetch& prefetch)
      : lines_(prefetch.first), then_(prefetch.then), left_(lines_.run), count_(prefetch.count) {}
  GATEFOLD_INLINE void next() {
    __builtin_prefetch(lines_.next, 0, 2);
    lines_.next += --left_ == 0 ? lines_.jump : Prefetch::line;
    left_ = left_ == 0 ? lines_.run : left_;
    if (--count_ == 0) {
      lines_ = then_;
      left_ = lines_.run;
    }
  }

 private:
  Prefetch::Lines lines_;
  const Prefetch::Lines& then_;
  Index left_, count_;
};

/// How the innermost loop of a product writes its sums to memory. `store` stores them. `add` adds them to the present
/// values. `stream` adds them to 0 and writes them with non-temporal stores (packet::stream), in whole, aligned
/// registers.
enum class Into : char { store, add, stream };

/// Supplies sum_tile, the innermost loop of a product A B, with elements of B from one packed panel that is in the
/// cache. load<C> loads the first C vector registers of a row of the panel.
template <class P>
struct PackedPanel {
  static constexpr int words_of_ahead = 2;
  const SumOf<P>* words;
  LookAhead look_ahead;

  template <int C>
  GATEFOLD_INLINE void load(Index k, packet::Of<SumOf<P>>* y) const {
#pragma GCC unroll 2
    for (int j = 0; j < C; ++j) y[j] = packet::load(words + Tile<P>::columns * k + j * Tile<P>::size);
  }
  GATEFOLD_INLINE void ahead() { look_ahead.next(); }
};

/// Adds the register tile `part` [rows, registers] to the values in `sums`. If `into` is Into::stream, replaces the
/// values in `sums` by 0 + `part` instead, with non-temporal stores. The loops are in a function of their own, so that
/// the many instances of sum_tile need not contain them.
template <class T>
[[gnu::noinline]] void add_tile(const T* part, int rows, int registers, T* sums, Index stride, Index panel, Into into) {
  constexpr int size = Register<T>::size;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < registers; ++j, part += size) {
      T* const to = sums + j / 2 * panel + i * stride + j % 2 * size;
      if (into == Into::stream)
        packet::stream(to, packet::filled(T(0)) + packet::load(part));
      else
        packet::store(to, packet::load(to) + packet::load(part));
    }
}

/// Computes a register tile of a matrix product A B: the sums s of eq. (1) for R rows of packed A and C registers of
/// columns of B. Stores them in `sums`, or adds them to `sums`.
/// @param depth   number of words (packed elements) in a row of A
/// @param b       source of the words of B: load(k, y) is called for k = 0, 1, … in this order. ahead(), which
///                prefetches, is called once before each group of words_of_ahead values of k
/// @param stride  distance between rows of `sums`, in elements
/// @param panel   distance between panels of Tile::columns columns of `sums`, in elements
template <class P, int R, int C, class Source>
[[gnu::noinline]] void sum_tile(Index depth, const SumOf<P>* a, const Source& b, SumOf<P>* sums, Index stride,
                                Index panel, Into into) {
  using T = SumOf<P>;
  using Packet = typename Register<T>::Packet;
  constexpr int size = Register<T>::size;
  Packet s[std::size_t{R}][std::size_t{C}];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) s[i][j] = packet::filled(T(0));
  // A local copy of b. The compiler can keep its members in registers, because no write to memory can change them.
  Source source = b;
  const auto step = [&](Index k) __attribute__((always_inline)) {
    Packet y[std::size_t{C}];
    source.template load<C>(k, y);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Packet x = packet::filled(a[i * Tile<P>::stride + k]);
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) s[i][j] = multiply_add<P>(x, y[j], s[i][j]);
    }
  };
  for (Index k = 0; k < depth; ++k) {
    source.ahead();
    step(k);
    if constexpr (Source::words_of_ahead == 2)
      if (++k < depth) step(k);
  }
  alignas(64) T part[std::size_t{R} * C * size];
  if (into != Into::store) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < C; ++j) packet::store(part + (i * C + j) * size, s[i][j]);
    return add_tile<T>(part, R, C, sums, stride, panel, into);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) packet::store(sums + j / 2 * panel + i * stride + j % 2 * size, s[i][j]);
}

#if defined(GATEFOLD_AMX)
/// Computes a tile of a matrix product with the matrix unit (AMX): `rows` rows, at most R · 16, by C · 16 columns of
/// one packed panel of B. An object of AmxTiles must have configured the unit.
template <class P, int R, int C>
[[gnu::noinline]] void amx_sum(Index rows, Index depth, const float* a, const float* b, float* sums, Index sums_stride,
                               Into into, const Prefetch& prefetch) {
  const bool add = into == Into::add;
  using V = Register<float>;
  using Unit = AmxTiles<P>;
  LookAhead ahead(prefetch);
  AmxSums<R, C> s;
  for (Index k = 0; k < depth; k += Unit::words) {
    s.add(a + k, Tile<P>::stride, b + k * Tile<P>::columns, Tile<P>::columns);
    for (int i = 0; i < Unit::words / 2; ++i) ahead.next();
  }
  if (!add && rows == R * Unit::rows) return s.store(sums, sums_stride);
  alignas(64) float part[R * Unit::rows * Tile<P>::columns];
  s.store(part, Tile<P>::columns);
  for (Index i = 0; i < rows; ++i)
    for (int j = 0; j < C * Unit::columns; j += V::size) {
      const V sum = V::load(part + i * Tile<P>::columns + j);
      float* to = sums + i * sums_stride + j;
      (add ? V::load(to) + sum : sum).store(to);
    }
}
#endif

/// Multiplies `rows` rows of packed A by one packed panel of B. Selects the instance of the innermost loop (sum_tile)
/// for this number of rows at run time. A panel is two registers wide; the second one is skipped if `columns` fit into
/// the first.
/// @param rows  1 to Tile::rows
/// @param a     must be readable up to the next multiple of Tile::unit rows
/// @param into  on the matrix unit only Into::store or Into::add
template <class P>
void tile_sum(Index rows, Index columns, Index depth, const SumOf<P>* a, const SumOf<P>* b, SumOf<P>* sums,
              Index sums_stride, Into into, const Prefetch& prefetch) {
  using T = SumOf<P>;
  const bool wide = columns > Tile<P>::size;
#if defined(GATEFOLD_AMX)
  if constexpr (on_amx<P>) {
    static constexpr decltype(&amx_sum<P, 1, 1>) kernels[2][2] = {{&amx_sum<P, 1, 1>, &amx_sum<P, 1, 2>},
                                                                  {&amx_sum<P, 2, 1>, &amx_sum<P, 2, 2>}};
    return kernels[rows > Tile<P>::unit][wide](rows, depth, a, b, sums, sums_stride, into, prefetch);
  } else
#endif
  {
    using Source = PackedPanel<P>;
    using Kernel = void (*)(Index, const T*, const Source&, T*, Index, Index, Into);
    static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
      return std::array<std::array<Kernel, 2>, sizeof...(R)>{
          {{&sum_tile<P, R + 1, 1, Source>, &sum_tile<P, R + 1, 2, Source>}...}};
    }
    (std::make_integer_sequence<int, Tile<P>::rows>{});
    kernels[static_cast<std::size_t>(rows - 1)][wide](depth, a, {b, LookAhead(prefetch)}, sums, sums_stride, 0, into);
  }
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
