#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/integer_dot.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/schedule.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

/// The innermost loops of a product with weights of 8 or 4 bits, eq. (5) of core/weights.hpp: on vector registers, and
/// on Intel's matrix unit. The two loops give the same bits. F is Int8, Int4 or Mxfp4 (quantised_format.hpp).
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu::quantised {

using V = Register<float>;
inline constexpr int size = V::size, width = Tile<float>::columns, registers = width / size;
/// The size in bytes of the scales of one group: one bfloat16 scale for each column of a panel.
inline constexpr Index scale_bytes = width * static_cast<Index>(sizeof(Bfloat16));

template <class F>
inline constexpr Index bytes_of_group = scale_bytes + Index(F::loads) * width* static_cast<Index>(sizeof(std::int32_t));

GATEFOLD_INLINE V floats(Ints v) {
  using Floats = float __attribute__((vector_size(sizeof(Ints))));
  return V(__builtin_bit_cast(packet::Of<float>, __builtin_convertvector(v, Floats)));
}
/// Stores `sum` at `to`, or adds it to the values at `to` if `into` is Into::add.
GATEFOLD_INLINE void write(packet::Of<float> sum, float* to, Into into) {
  packet::store(to, into == Into::add ? packet::load(to) + sum : sum);
}

/// The innermost loop: multiplies R rows by one panel, eq. (5).
template <class F, int R>
[[gnu::noinline]] void tile(Index groups, const QuantisedRow* a, const std::byte* b, float* sums, Index stride,
                            Into into) {
  using Packet = packet::Of<float>;
  constexpr Index vector = sizeof(Ints), ahead = tuning.prefetched_lines * Prefetch::line;
  Packet s[std::size_t{R}][std::size_t{registers}];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int c = 0; c < registers; ++c) s[i][c] = packet::filled(0.0F);
  for (Index g = 0; g < groups; ++g, b += bytes_of_group<F>) {
    Ints n[std::size_t{R}][std::size_t{registers}];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int c = 0; c < registers; ++c) n[i][c] = filled_ints(-F::offset * a[i].sum[g]);
    const std::byte* q = b + scale_bytes;
#pragma GCC unroll 8
    for (Index d = 0; d < F::loads; ++d, q += registers * vector) {
      Ints loaded[std::size_t{registers}];
#pragma GCC unroll 2
      for (int c = 0; c < registers; ++c) {
        __builtin_prefetch(q + c * vector + ahead, 0, 3);
        loaded[c] = load_ints(q + c * vector);
      }
#pragma GCC unroll 2
      for (int part = 0; part < F::parts; ++part) {
        Ints w[std::size_t{registers}];
#pragma GCC unroll 2
        for (int c = 0; c < registers; ++c) w[c] = F::bytes(loaded[c], part);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
          std::int32_t x;
          std::memcpy(&x, a[i].values + g * group_size + 4 * (d + part * F::loads), sizeof(x));
#pragma GCC unroll 2
          for (int c = 0; c < registers; ++c) n[i][c] = F::dot(n[i][c], w[c], x);
        }
      }
    }
    V scale[std::size_t{registers}];
#pragma GCC unroll 2
    for (int c = 0; c < registers; ++c) scale[c] = load_halves(reinterpret_cast<const Bfloat16*>(b) + c * size);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int c = 0; c < registers; ++c)
        s[i][c] = packet::madd<float>(floats(n[i][c]).packet(), (scale[c] * V(a[i].scale[g])).packet(), s[i][c]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int c = 0; c < registers; ++c) write(s[i][c], sums + i * stride + c * size, into);
}

/// The largest number of rows of a tile for which the integer sums and the float sums stay in registers.
inline constexpr int most_rows = has_32_registers ? 7 : 2;

#if defined(GATEFOLD_AMX_INT8)
/// Multiplies rows by panels on the matrix unit (AMX), 16 rows at a time. Its integer sums are exact, so the results
/// have the same bits as the results of `tile`.
class OnMatrixUnit {
 public:
  /// Returns how many rows, from the first on, the matrix unit multiplies. If only a few rows remain after the last
  /// full tile of rows, the unit does not multiply them, because vector registers are faster for them.
  static Index rows_of(Index rows) {
    const Index last = rows % AmxBytes::rows;
    return !amx_permitted() ? 0 : last > most_rows ? rows : rows - last;
  }
  OnMatrixUnit(Index rows, Index groups, const QuantisedRow* a)
      : rows_(rows), last_((rows - 1) % AmxBytes::rows + 1), unit_(static_cast<int>(last_)) {
    for (Index g = 0; g < groups; ++g)
      for (Index i = 0; i < AmxBytes::rows; ++i) last_scale_[g][i] = i < last_ ? a[rows - last_ + i].scale[g] : 0.0F;
  }
  /// Multiplies all rows by one panel.
  template <class F>
  void panel(Index groups, const QuantisedRow* a, const std::byte* b, float* sums, Index stride, Into into) {
    next_ = b + groups * bytes_of_group<F>;
    prefetched_ = divide_up(bytes_of_group<F>, divide_up(rows_, Index(AmxBytes::rows)) * registers * Prefetch::line);
    for (int c = 0; c < registers; ++c, sums += size) {
      const auto* const scales = reinterpret_cast<const Bfloat16*>(b) + c * size;
      const std::byte* const q = b + scale_bytes + c * vector;
      Columns columns{scales, q, registers * vector, bytes_of_group<F>};
      if constexpr (F::parts == 2) {
        columns = {scales, bytes_, vector, AmxBytes::words * vector};
        for (Index g = 0; g < groups; ++g)
          signed_bytes<F>(q + g * bytes_of_group<F>, bytes_ + g * AmxBytes::words * vector);
      }
      Index i = 0;
      for (; i + AmxBytes::rows < rows_; i += AmxBytes::rows)
        tile<F, false>(groups, a + i, columns, sums + i * stride, stride, into);
      tile<F, true>(groups, a + i, columns, sums + i * stride, stride, into);
    }
  }

 private:
  static constexpr Index vector = sizeof(Ints);
  // The products of this many groups are computed before the first result is read. Otherwise each read would wait for
  // its product, because a product has a long latency.
  static constexpr Index at_once = 4;

  // One register of columns of a panel: the scales, and the numbers q (2 q for Mxfp4) as signed bytes.
  struct Columns {
    const Bfloat16* scales;
    const std::byte* q;
    Index q_stride, q_group;  // bytes between rows of words, and between groups
  };

  // Converts the codes of 4 bits of a group to signed bytes: the numbers q, or 2 q for Mxfp4.
  template <class F>
  static void signed_bytes(const std::byte* from, std::byte* to) {
    using Bytes = std::int8_t __attribute__((vector_size(sizeof(Ints))));
    for (Index d = 0; d < F::loads; ++d, from += registers * vector)
      for (int part = 0; part < F::parts; ++part) {
        const Bytes codes = __builtin_bit_cast(Bytes, F::bytes(load_ints(from), part));
        const Bytes q = codes - static_cast<std::int8_t>(F::offset);
        std::memcpy(to + (d + part * F::loads) * vector, &q, sizeof(q));
      }
  }
  // Computes the sums for one register of columns and 16 rows, or the last rows if `last` is true.
  template <class F, bool last>
  [[gnu::noinline]] void tile(Index groups, const QuantisedRow* a, const Columns& b, float* sums, Index stride,
                              Into into) {
    constexpr int rows = AmxBytes::rows;
    packet::Of<float> s[std::size_t{rows}];
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) s[i] = packet::filled(0.0F);
    for (Index first = 0; first < groups; first += at_once) {
      const Index end = std::min(first + at_once, groups);
      for (Index g = first; g < end; ++g)
        unit_.multiply<last>(a->values + g * group_size, sizeof(QuantisedRow), b.q + g * b.q_group, b.q_stride,
                             n_[g - first]);
      for (Index g = first; g < end; ++g) {
        for (Index line = 0; line < prefetched_; ++line, next_ += Prefetch::line) __builtin_prefetch(next_, 0, 2);
        const V scale = load_halves(b.scales + g * (bytes_of_group<F> / Index(sizeof(Bfloat16))));
        const auto* n = reinterpret_cast<const std::byte*>(n_[g - first]);
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) {
          const V of_row(last ? last_scale_[g][i] : a[i].scale[g]);
          s[i] = packet::madd<float>(floats(load_ints(n + i * vector)).packet(), (scale * of_row).packet(), s[i]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
      if (!last || i < last_) write(s[i], sums + i * stride, into);
  }

  Index rows_, last_;
  AmxBytes unit_;
  const std::byte* next_ = nullptr;  // the memory that is prefetched next
  Index prefetched_ = 0;             // the number of cache lines that each group prefetches
  alignas(64) std::int32_t n_[at_once][AmxBytes::rows * AmxBytes::columns]{};
  alignas(64) std::byte bytes_[QuantisedRow::groups * AmxBytes::words * vector];
  float last_scale_[QuantisedRow::groups][AmxBytes::rows];
};
#endif

/// The function QuantisedFormat::multiply of the form F: multiplies `rows` rows by `panels` panels, eq. (5).
template <class F>
void multiply(Index rows, Index groups, Index panels, const QuantisedRow* a, const std::byte* b, float* sums,
              Index stride, Index sums_panel, Into into) {
  static constexpr auto tiles = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<decltype(&tile<F, 1>), sizeof...(R)>{&tile<F, R + 1>...};
  }
  (std::make_integer_sequence<int, most_rows>{});
  const auto on_vectors = [&](Index first, const std::byte* panel, float* to) {
    const Index all = rows - first, count = divide_up(all, Index(most_rows));
    for (Index t = 0; t < count; ++t) {
      const Index begin = first + t * all / count, end = first + (t + 1) * all / count;
      tiles[static_cast<std::size_t>(end - begin - 1)](groups, a + begin, panel, to + begin * stride, stride, into);
    }
  };
  const Index panel_bytes = groups * bytes_of_group<F>;
#if defined(GATEFOLD_AMX_INT8)
  if (const Index first = OnMatrixUnit::rows_of(rows); first > 0) {
    OnMatrixUnit unit(first, groups, a);
    for (Index p = 0; p < panels; ++p) {
      unit.panel<F>(groups, a, b + p * panel_bytes, sums + p * sums_panel, stride, into);
      on_vectors(first, b + p * panel_bytes, sums + p * sums_panel);
    }
    return;
  }
#endif
  for (Index p = 0; p < panels; ++p) on_vectors(0, b + p * panel_bytes, sums + p * sums_panel);
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu::quantised
