#pragma once

#include <cmath>
#include <cstddef>
#include <utility>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), RotaryTable, Rotate, ScaleByPosition);
GATEFOLD_FUNCTORS((class B), RotaryFrequency);

/// Selects how Rotary changes its frequencies for sequences that are longer than the training sequences.
enum class RopeType : char { original, linear, ntk, yarn, llama3 };

/// Rotary positions. Each pair of values of a query or key is rotated by an angle that grows with the position of the
/// item. The product of a query and a key then depends on the positions only through their distance.
///
///     x'_i = a (x_i cos θ_i − x_{i+R/2} sin θ_i),   x'_{i+R/2} = a (x_{i+R/2} cos θ_i + x_i sin θ_i)     (1)
///     θ_i = position · f_i,   f_i = rope_theta^(−2i/R),   i = 0 … R/2 − 1                               (2)
///
/// Of the F values of a head, R = partial_rotary_factor · F are rotated. The others do not change. The amplitude a is
/// 1, except with yarn. The types change the frequencies f_i:
///
///     linear   f_i / factor                                                                             (3)
///     ntk      rope_theta · factor^(R/(R−2)) in place of rope_theta                                     (4)
///     yarn     f_i (1 − r_i) + f_i / factor · r_i,   a = 0.1 ln(factor) + 1                             (5)
///     llama3   f_i (1 − s_i) + f_i / factor · s_i                                                       (6)
///
/// The weights r_i and s_i depend on how often pair i turns in original_max_position_embeddings positions. r_i is 0 for
/// pairs that turn more than beta_fast times, 1 for pairs that turn fewer than beta_slow times, and linear in i between
/// them. s_i is 0 for pairs that turn more than high_freq_factor times, 1 for pairs that turn fewer than
/// low_freq_factor times, and linear in the number of turns between them. low_freq_factor and high_freq_factor can be
/// equal, as in Llama 4.
///
/// Source: Su et al. 2021, arXiv:2104.09864, eq. (34); Peng et al. 2023, arXiv:2309.00071 (yarn). The options, their
/// names and the pairs (x_i, x_{i+R/2}) are the same as in Hugging Face's transformers (config.json).
struct Rotary {
  double rope_theta = 10000;
  double partial_rotary_factor = 1;
  RopeType rope_type = RopeType::original;
  double factor = 1;
  Index original_max_position_embeddings = 0;
  double low_freq_factor = 1, high_freq_factor = 4;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // yarn: the ramp r_i of (5) begins and ends at a whole number i (rounded down, up)
  // The amplitude a of yarn. If it is 0, a is computed from factor and, if mscale and mscale_all_dim are above 0, from
  // these two.
  double attention_factor = 0;
  double mscale = 0, mscale_all_dim = 0;
  bool interleaved = false;  // the pairs are x_{2i}, x_{2i+1}, as in DeepSeek's models

  /// Returns R, the number of rotated values of a head of `head_dim` values.
  GATEFOLD_HD Index rotated(Index head_dim) const {
    return static_cast<Index>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  /// Returns the frequency f_i of (2) to (6), in radians per position.
  GATEFOLD_HD double frequency(Index i, Index rotated) const {
    const double turn = 2 * 3.14159265358979323846, at = static_cast<double>(2 * i) / static_cast<double>(rotated),
                 positions = static_cast<double>(original_max_position_embeddings);
    const double base = rope_type == RopeType::ntk && rotated > 2
                            ? rope_theta * std::pow(factor, static_cast<double>(rotated) / double(rotated - 2))
                            : rope_theta;
    const double f = std::pow(base, -at);
    double share = 0;  // weight of f_i / factor in the result; f_i has the weight 1 − share
    if (rope_type == RopeType::linear) share = 1;
    if (rope_type == RopeType::llama3)
      share = high_freq_factor > low_freq_factor
                  ? 1 - clamp((positions * f / turn - low_freq_factor) / (high_freq_factor - low_freq_factor))
                  : positions * f / turn < low_freq_factor;
    if (rope_type == RopeType::yarn) {
      // Returns the index i of the pair that turns n times in `positions` positions, as a real number.
      const auto pair = [&](double n) {
        return static_cast<double>(rotated) * std::log(positions / (n * turn)) / (2 * std::log(rope_theta));
      };
      double low = pair(beta_fast), high = pair(beta_slow);
      if (truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = low > 0 ? low : 0;
      high = high < static_cast<double>(rotated - 1) ? high : static_cast<double>(rotated - 1);
      share = clamp((static_cast<double>(i) - low) / (high > low ? high - low : 0.001));
    }
    return f * (1 - share) + f / factor * share;
  }
  /// Returns the amplitude a of (1).
  GATEFOLD_HD double amplitude() const {
    if (rope_type != RopeType::yarn) return 1;
    if (attention_factor > 0) return attention_factor;
    const auto of = [&](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1; };
    return mscale > 0 && mscale_all_dim > 0 ? of(mscale) / of(mscale_all_dim) : of(1);
  }

  /// Checks the options for heads of `head_dim` values.
  /// @throws ArgumentError if an option is not valid; the message names the option
  void validate(const char* where, Index head_dim) const {
    expect_positive(where, "rotary.rope_theta", rope_theta);
    expect(partial_rotary_factor >= 0 && partial_rotary_factor <= 1, where, "rotary.partial_rotary_factor", "0 to 1",
           partial_rotary_factor);
    expect(rotated(head_dim) % 2 == 0, where, "rotary.partial_rotary_factor",
           Joined{"an even number of rotated values of a head of ", head_dim}, rotated(head_dim));
    expect(factor >= 1, where, "rotary.factor", "at least 1", factor);
    const bool trained = rope_type == RopeType::yarn || rope_type == RopeType::llama3;
    expect(!trained || original_max_position_embeddings >= 1, where, "rotary.original_max_position_embeddings",
           "at least 1, because rope_type is yarn or llama3", original_max_position_embeddings);
    expect(rope_type != RopeType::yarn || (beta_slow > 0 && beta_slow < beta_fast), where, "rotary.beta_slow",
           Joined{"above 0 and less than beta_fast = ", beta_fast, ", because rope_type is yarn"}, beta_slow);
    for (const auto& [name, value] : {std::pair{"rotary.attention_factor", attention_factor},
                                      {"rotary.mscale", mscale},
                                      {"rotary.mscale_all_dim", mscale_all_dim}})
      expect(value >= 0, where, name, "at least 0", value);
    expect(rope_type != RopeType::llama3 || low_freq_factor <= high_freq_factor, where, "rotary.low_freq_factor",
           Joined{"at most high_freq_factor = ", high_freq_factor}, low_freq_factor);
  }

 private:
  GATEFOLD_HD static double clamp(double v) { return v < 0 ? 0 : v > 1 ? 1 : v; }
};

namespace detail_::attending {

/// Returns the table [length, R] of cosines and sines for the positions [position, position + length), in scratch
/// memory.
template <class T, class C>
auto rotary_table(C& ctx, const Rotary& of, Index head_dim, Index position, Index length) {
  using B = typename C::Backend;
  const Index rotated = of.rotated(head_dim);
  const View<double, 1, B> frequency = ctx.template scratch<double>(rotated / 2);
  const View<T, 2, B> table = ctx.template scratch<T>(length, rotated);
  B::for_each(ctx, rotated / 2, functor::RotaryFrequency<B>{of, frequency});
  B::for_each(ctx, length * (rotated / 2), functor::RotaryTable<T, B>{of.amplitude(), frequency, position, table});
  return View<const T, 2, B>(table);
}
/// Rotates the rows of x [N, heads · head_dim] in place (functor::Rotate).
/// @param first  the first rotated value of each head
/// @param back   if true, rotates by −θ, for the backward pass
template <class T, class C, class B>
void rotate(C& ctx, const Rotary& of, View<const T, 2, B> table, Index head_dim, Index first, bool back,
            View<T, 2, B> x) {
  if (table.extent(1) == 0) return;
  B::for_rows(ctx, x.extent(0), functor::Rotate<T, B>{table, head_dim, first, of.interleaved, back, x});
}

}  // namespace detail_::attending

/// A factor of the queries that grows with the position, so that attention over many keys stays as sharp as attention
/// over few keys.
///
///     q'_t = τ(t) q_t,   τ(t) = 1 + attn_scale · ln(1 + ⌊(t + 1) / floor_scale⌋)                         (1)
///
/// t is the position of the item in its sequence, from 0. The factor is 1 for the first floor_scale − 1 positions.
///
/// Source: Nakanishi 2025, arXiv:2501.19399, as Llama 4 uses it (transformers' modeling_llama4.py); the options have
/// the names of config.json.
struct QueryTemperature {
  Index floor_scale = 0;  // 0: all factors are 1
  double attn_scale = 0.1;

  GATEFOLD_HD double factor(Index position) const {
    if (floor_scale == 0) return 1;
    return 1 + attn_scale * std::log1p(static_cast<double>((position + 1) / floor_scale));
  }
  /// @throws ArgumentError unless floor_scale >= 0 and attn_scale is finite
  void validate(const char* where) const {
    expect(floor_scale >= 0, where, "temperature.floor_scale", "at least 0", floor_scale);
    expect_finite(where, "temperature.attn_scale", attn_scale);
  }
};

namespace detail_::attending {

/// Multiplies the queries x [N, ·] by the factors τ of their positions, in place. The same function multiplies the
/// gradients of queries in backward.
template <class C, class T, class B>
void scale_by_position(C& ctx, const QueryTemperature& of, Index position, Index length, View<T, 2, B> x) {
  if (of.floor_scale == 0) return;
  B::for_rows(ctx, x.extent(0), functor::ScaleByPosition<T, B>{of, position, length, x});
}

}  // namespace detail_::attending

namespace functor {

/// Writes the table of the cosines and sines in (1) of Rotary. For row t and pair i of the R/2 pairs of a head, with
/// the angle θ = (position + t) · frequency[i] and the amplitude a: to[t, i] = a cos θ, to[t, R/2 + i] = a sin θ.
template <class T, class B>
struct RotaryTable {
  double amplitude;
  View<const double, 1, B> frequency;  // [R/2]
  Index position;                      // position of row 0
  View<T, 2, B> to;                    // [length, R]
  GATEFOLD_HD void operator()(Index n) const {
    const Index pairs = frequency.extent(0), t = n / pairs, i = n % pairs;
    const double angle = static_cast<double>(position + t) * frequency(i);
    to(t, i) = static_cast<T>(amplitude * std::cos(angle));
    to(t, pairs + i) = static_cast<T>(amplitude * std::sin(angle));
  }
};
template <class B>
struct RotaryFrequency {
  Rotary of;
  View<double, 1, B> to;  // [R/2]
  GATEFOLD_HD void operator()(Index i) const { to(i) = of.frequency(i, 2 * to.extent(0)); }
};

/// Rotates row n of x in place, by equation (1) of Rotary in each head. If `back` is true, rotates by −θ instead, for
/// the backward pass. In each head of head_dim values, the rotated values begin at `first`.
template <class T, class B>
struct Rotate {
  View<const T, 2, B> table;  // [length, R] cosines and sines (RotaryTable)
  Index head_dim, first;
  bool interleaved, back;
  View<T, 2, B> x;  // [N, heads · head_dim], N = sequences · length

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index pairs = table.extent(1) / 2;
    const T* const cosine = table.data() + n % table.extent(0) * table.extent(1);
    const T* const sine = cosine + pairs;
    const T sign = back ? T(-1) : T(1);
    for (Index column = first; column < x.extent(1); column += head_dim) {
      T* const head = x.data() + n * x.extent(1) + column;
      if (interleaved) {
        for (Index i = lanes.lane; i < pairs; i += lanes.size) {
          const T a = head[2 * i], b = head[2 * i + 1], c = cosine[i], s = sine[i] * sign;
          head[2 * i] = a * c - b * s;
          head[2 * i + 1] = b * c + a * s;
        }
        continue;
      }
      each_column<T>(lanes, pairs, [&](auto at, Index i) {
        const auto a = at.load(head + i), b = at.load(head + pairs + i), c = at.load(cosine + i),
                   s = at.load(sine + i) * sign;
        at.store(head + i, a * c - b * s);
        at.store(head + pairs + i, b * c + a * s);
      });
    }
  }
};
/// Multiplies row n of x by the factor τ of its position (QueryTemperature), in place. Each sequence has `length` rows,
/// and the first row of a sequence has the position `position`. The same functor also computes the backward pass.
template <class T, class B>
struct ScaleByPosition {
  QueryTemperature of;
  Index position, length;
  View<T, 2, B> x;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const T factor = static_cast<T>(of.factor(position + n % length));
    T* const row = x.data() + n * x.extent(1);
    each_column<T>(lanes, x.extent(1), [&](auto at, Index c) { at.store(row + c, at.load(row + c) * factor); });
  }
};

}  // namespace functor

}  // namespace gatefold
