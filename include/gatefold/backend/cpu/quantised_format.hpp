#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "gatefold/backend/cpu/bfloat16.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/integer_dot.hpp"
#include "gatefold/backend/cpu/memory.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/parallel.hpp"
#include "gatefold/backend/cpu/quantised_matrix.hpp"
#include "gatefold/backend/cpu/quantised_tile.hpp"
#include "gatefold/backend/cpu/register.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/tuning.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

/// Rounds weights to 8 or 4 bits and items to 8 bits, and multiplies them: eq. (1) to (5) of core/weights.hpp.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Returns the functions for a form of quantised weights, or null if the form is not quantised.
/// @tparam T  float. The function is a template so that only programs that freeze weights compile it
template <class T>
const QuantisedFormat* quantised_format(Weights weights);

namespace quantised {

/// Returns, for each lane, a if `mask` has all bits set, and b if it has none.
GATEFOLD_INLINE Ints selected(Ints mask, Ints a, Ints b) { return (mask & a) | (~mask & b); }
GATEFOLD_INLINE V as_floats(Ints v) { return V(__builtin_bit_cast(packet::Of<float>, v)); }
GATEFOLD_INLINE Ints as_ints(V v) { return __builtin_bit_cast(Ints, v.packet()); }
GATEFOLD_INLINE Ints bits_of(float v) { return filled_ints(__builtin_bit_cast(std::int32_t, v)); }
/// Returns byte j of each lane.
GATEFOLD_INLINE Ints lane_byte(Ints v, int j) { return (v >> 8 * j) & filled_ints(255); }
/// Returns the bits of |v|. Compared as integers, these bits have the order of the magnitudes, and NaN is the largest.
GATEFOLD_INLINE Ints magnitude(V v) { return as_ints(v) & filled_ints(0x7fffffff); }
GATEFOLD_INLINE Ints greater(Ints a, Ints b) { return __builtin_bit_cast(Ints, a > b); }
GATEFOLD_INLINE Ints limited(Ints v, std::int32_t low, std::int32_t high) {
  v = selected(greater(filled_ints(low), v), filled_ints(low), v);
  return selected(greater(v, filled_ints(high)), filled_ints(high), v);
}
/// Returns v rounded to the nearest integer, ties to even, for |v| < 2²².
GATEFOLD_INLINE Ints nearest(V v) {
  const float large = 0x1.8p23F;  // a sum of `large` and v has no fractional bits
  return as_ints(V(packet::sealed((v + large).packet()))) - bits_of(large);
}
/// Returns 0 if the largest magnitude of a group is below `least`, NaN if it is infinite or NaN, and otherwise `scale`.
GATEFOLD_INLINE V checked_scale(V scale, Ints largest, float least) {
  const Ints nan = bits_of(std::numeric_limits<float>::quiet_NaN());
  const Ints kept = selected(greater(bits_of(least), largest), filled_ints(0), as_ints(scale));
  return as_floats(selected(greater(largest, bits_of(std::numeric_limits<float>::max())), nan, kept));
}
/// Returns v / scale in lanes with a finite scale other than 0, and 0 in the other lanes.
GATEFOLD_INLINE V quotient(V v, V scale) {
  const Ints size_of_scale = magnitude(scale);
  const Ints usable =
      greater(size_of_scale, filled_ints(0)) & greater(bits_of(std::numeric_limits<float>::infinity()), size_of_scale);
  return as_floats(usable & as_ints(v / as_floats(selected(usable, as_ints(scale), bits_of(1)))));
}

/// Weights of 8 bits, eq. (1). The packed copy contains the bytes q. A group has 8 vectors for each register of
/// columns; a lane of vector d contains rows 4 d to 4 d + 3 of its column.
struct Int8 {
  static constexpr int loads = 8, parts = 1;
  static constexpr std::int32_t offset = signed_offset;
  static constexpr float least = WeightRounding::least;
  GATEFOLD_INLINE static Ints bytes(Ints loaded, int) { return with_signed_offset(loaded); }
  GATEFOLD_INLINE static Ints dot(Ints s, Ints w, std::int32_t x) { return signed_dot(s, w, x); }

  static V scale(V, Ints largest) { return rounded<Bfloat16>(as_floats(largest) / V(127.0F)); }
  static V stored(V scale) { return scale; }
  static Ints code(V quotient) { return limited(nearest(quotient), -127, 127) & filled_ints(255); }
  static Ints value(Ints loaded, int, int j) { return loaded << (24 - 8 * j) >> 24; }
};

/// Weights of 4 bits. A group has 4 vectors for each register of columns. A lane of vector d contains rows 4 d to
/// 4 d + 3 of its column in the lower halves of its bytes, and rows 16 + 4 d to 16 + 4 d + 3 in the upper halves.
struct FourBits {
  static constexpr int loads = 4, parts = 2;
  GATEFOLD_INLINE static Ints codes(Ints loaded, int part) { return (loaded >> 4 * part) & filled_ints(0x0f0f0f0f); }
  GATEFOLD_INLINE static Ints dot(Ints s, Ints w, std::int32_t x) { return small_dot(s, w, x); }
};

/// Weights of 4 bits that are rounded to integers q, eq. (2). The packed copy contains q + 8.
struct Int4 : FourBits {
  static constexpr std::int32_t offset = 8;
  static constexpr float least = WeightRounding::least;
  GATEFOLD_INLINE static Ints bytes(Ints loaded, int part) { return codes(loaded, part); }

  static V scale(V most, Ints) { return rounded<Bfloat16>(most / V(-8.0F)); }
  static V stored(V scale) { return scale; }
  static Ints code(V quotient) { return limited(nearest(quotient), -8, 7) + filled_ints(8); }
  static Ints value(Ints loaded, int part, int j) { return lane_byte(bytes(loaded, part), j) - filled_ints(offset); }
};

/// Weights of 4 bits in the format MXFP4, eq. (3). The packed copy contains a sign bit and three bits for the magnitude
/// of q. It also contains s / 2, which is the scale of the integers 2 q.
struct Mxfp4 : FourBits {
  static constexpr std::int32_t offset = 12;
  static constexpr float least = std::numeric_limits<float>::denorm_min();
  // The value 2 q + 12 for each code of q.
  alignas(16) static constexpr std::uint8_t table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  GATEFOLD_INLINE static Ints bytes(Ints loaded, int part) { return looked_up(table, codes(loaded, part)); }

  static V scale(V, Ints largest) {
    // The scale is the smallest power of two that is at least a / 6, for the largest magnitude a = f 2^n, 1 <= f < 2:
    // 2^(n − 2) if f <= 1.5, otherwise 2^(n − 1). It is not less than 2^-127, a subnormal number.
    const Ints above = greater(largest & filled_ints(0x7fffff), filled_ints(0x400000));
    const Ints exponent = (largest >> 23) - filled_ints(2) - above;
    return as_floats(selected(greater(exponent, filled_ints(0)), exponent << 23, filled_ints(0x400000)));
  }
  static V stored(V scale) { return scale * 0.5F; }
  static Ints code(V quotient) {
    const Ints unsigned_bits = magnitude(quotient), sign = (as_ints(quotient) >> 28) & filled_ints(8);
    const V t = as_floats(unsigned_bits);
    const Ints low = nearest(t * 2.0F), middle = nearest(t - 2.0F) + filled_ints(4),
               high = nearest((t - 4.0F) * 0.5F) + filled_ints(6);
    const Ints code =
        selected(greater(bits_of(2), unsigned_bits), low, selected(greater(bits_of(4), unsigned_bits), middle, high));
    return limited(code, 0, 7) | sign;
  }
  static Ints value(Ints loaded, int part, int j) { return lane_byte(bytes(loaded, part), j) - filled_ints(offset); }
};

template <class F>
void encode(const float* from, std::byte* to) {
  for (int r = 0; r < registers; ++r) {
    Ints largest = filled_ints(0), most = filled_ints(0);
    for (Index k = 0; k < group_size; ++k) {
      const V w = V::load(from + k * width + r * size);
      const Ints above = greater(magnitude(w), largest);
      largest = selected(above, magnitude(w), largest);
      most = selected(above, as_ints(w), most);
    }
    const V scale = checked_scale(F::scale(as_floats(most), largest), largest, F::least);
    store_halves(F::stored(scale), reinterpret_cast<Bfloat16*>(to) + r * size);
    const auto four = [&](Index k) {
      Ints all = filled_ints(0);
      for (int j = 0; j < 4; ++j)
        all |= F::code(quotient(V::load(from + (k + j) * width + r * size), scale)) << (8 * j);
      return all;
    };
    for (Index d = 0; d < F::loads; ++d) {
      Ints all = four(4 * d);
      if constexpr (F::parts == 2) all |= four(4 * (d + F::loads)) << 4;
      std::memcpy(to + scale_bytes + (d * registers + r) * Index(sizeof(all)), &all, sizeof(all));
    }
  }
}

template <class F>
void decode(const std::byte* from, float* to) {
  const std::byte* loaded = from + scale_bytes;
  for (Index d = 0; d < F::loads; ++d)
    for (int r = 0; r < registers; ++r, loaded += sizeof(Ints)) {
      const V scale = load_halves(reinterpret_cast<const Bfloat16*>(from) + r * size);
      for (int part = 0; part < F::parts; ++part)
        for (int j = 0; j < 4; ++j)
          (floats(F::value(load_ints(loaded), part, j)) * scale)
              .store(to + (4 * (d + part * F::loads) + j) * width + r * size);
    }
}

/// Rounds at most Tile::depth numbers of an item, eq. (4).
inline void encode_row(const float* from, Index depth, QuantisedRow& to) {
  QuantisedRow row{};  // `to` can be in the memory of `from`
  for (Index g = 0; g * group_size < depth; ++g) {
    const Index count = std::min(group_size, depth - g * group_size);
    const float* const x = from + g * group_size;
    const auto each = [&](const auto& f) {
      for (Index i = 0; i < count; i += size) {
        const auto n = static_cast<int>(std::min<Index>(size, count - i));
        f(V::load(x + i, n), i, static_cast<std::size_t>(n));
      }
    };
    Ints largest = filled_ints(0);
    each([&](V v, Index, std::size_t) { largest = selected(greater(magnitude(v), largest), magnitude(v), largest); });
    const Ints infinity = bits_of(std::numeric_limits<float>::infinity());  // replaces NaN, which largest() can lose
    const float a = as_floats(selected(greater(largest, infinity), infinity, largest)).largest();
    if (!(a <= std::numeric_limits<float>::max())) row.scale[g] = std::numeric_limits<float>::quiet_NaN();
    if (!(a >= WeightRounding::least && a <= std::numeric_limits<float>::max())) continue;
    row.scale[g] = a / 127.0F;
    const V inverse(127.0F / a);
    Ints sum = filled_ints(0);
    each([&](V v, Index i, std::size_t n) {
      using Bytes = std::int8_t __attribute__((vector_size(sizeof(Ints) / 4)));
      const Ints p = limited(nearest(v * inverse), -127, 127);
      const Bytes bytes = __builtin_convertvector(p, Bytes);
      std::memcpy(row.values + g * group_size + i, &bytes, n);
      sum += p;
    });
    row.sum[g] = static_cast<std::int32_t>(floats(sum).sum());  // exact, because the sum is small
  }
  to = row;
}

inline void pack_rows(const Operand<float>& a, Index line, Index lines, Index k, Index depth, QuantisedRow* to) {
  GATEFOLD_ASSERT(a.lines_are_rows, "product with quantised weights: the items must be rows of a matrix");
  for (Index i = 0; i < lines; ++i) encode_row(a.at(line + i, k), depth, to[i]);
}

template <class F>
constexpr QuantisedFormat format(Weights form) {
  return {form, bytes_of_group<F>, &encode<F>, &decode<F>, &pack_rows, &multiply<F>};
}

}  // namespace quantised

/// Writes the weights s q of a quantised matrix [depth, columns] to `to`.
template <class Context>
void decode(Context& ctx, QuantisedMatrix w, Index depth, Index columns, float* to) {
  constexpr Index width = Tile<float>::columns, block = Tile<float>::depth;
  const Index panels = QuantisedMatrix::panels(columns);
  parallel_for(ctx.executor(), ctx.threads(), divide_up(depth, block) * panels, [&](Index i, int) noexcept {
    const Index first = i / panels * block, j = i % panels * width, length = std::min(block, depth - first);
    const std::byte* from = (w + QuantisedMatrix::at(columns, first, length, j)).data;
    alignas(64) float values[std::size_t{group_size} * std::size_t{width}];
    for (Index k = first; k < first + length; k += group_size, from += w.format->group_bytes) {
      w.format->decode(from, values);
      for (Index row = 0; row < std::min(group_size, first + length - k); ++row)
        std::copy_n(values + row * width, std::min(width, columns - j), to + (k + row) * columns + j);
    }
  });
}

template <class T>
const QuantisedFormat* quantised_format(Weights weights) {
  static constexpr QuantisedFormat formats[] = {quantised::format<quantised::Int8>(Weights::int8),
                                                quantised::format<quantised::Int4>(Weights::int4),
                                                quantised::format<quantised::Mxfp4>(Weights::mxfp4)};
  return is_quantised(weights) ? &formats[static_cast<int>(weights) - static_cast<int>(Weights::int8)] : nullptr;
}

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
