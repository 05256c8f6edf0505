#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/prefetch.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// The innermost loop of every product.
///
/// It and its relative of few terms (rank_update.hpp) compute the sum over one block of at most Tile::depth values of k
/// as one chain of multiply-adds from zero,
///
///     s = 0;   s = madd(a[k], b[k], s) for k = first, first + 1, …                                          (1)
///
/// (of words: where these are pairs of bfloat16, of k + 1 and then of k, for k = first, first + 2, …)
/// so that an element's bits depend on its row of A and its column of B alone. The matrix unit (amx.hpp) takes 32
/// values at a time: a chain of the even ones and a chain of the odd ones, their sum added to s.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// The lines that a tile prefetches beside its sums, in half as many steps as it has words.
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

/// What becomes of a tile's chains: they are stored, added to what is there, or added to 0 and stored past the caches
/// (packet::stream), whole registers where these are aligned.
enum class Into : char { store, add, stream };

/// Words of B that are packed and in the cache: the first registers of one panel.
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

/// sums[R, C registers] = or += the chains (1) of R rows of packed A and C registers of columns of B.
/// @param depth   words of a row
/// @param b       where the words of B come from: load(k, y), called for k = 0, 1, … in this order, and ahead(), before
///                every words_of_ahead of them, to prefetch
/// @param stride  elements from row to row of sums
/// @param panel   and from Tile::columns to the next ones
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
  Source source = b;  // of its own: no store changes it
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
  constexpr int together = Source::words_of_ahead;
  Index k = 0;
  for (; k + together <= depth; k += together) {
    source.ahead();
    for (int i = 0; i < together; ++i) step(k + i);
  }
  for (; k < depth; ++k) step(k);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < C; ++j) {
      T* to = sums + j / 2 * panel + i * stride + j % 2 * size;
      if (into == Into::stream)
        packet::stream(to, packet::filled(T(0)) + s[i][j]);
      else
        packet::store(to, into == Into::add ? packet::load(to) + s[i][j] : s[i][j]);
    }
}

#if defined(GATEFOLD_AMX)
/// The same of a packed panel by the matrix unit, set up by AmxTiles: of 16 C columns and `rows` rows, at most 16 R.
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

/// sum_tile of 1 to Tile::rows rows and one packed panel. A register of the panel beyond `columns` is left out.
/// @param a     readable up to the next whole Tile::unit of rows
/// @param into  Into::stream not of the matrix unit
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
