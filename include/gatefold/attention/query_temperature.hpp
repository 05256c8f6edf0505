#pragma once

#include <cmath>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

/// A factor of the queries that grows with the position, so that attention over many keys stays as sharp as over few.
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

namespace functor {

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

namespace detail_::attending {

/// Multiplies the queries x [N, ·] by the factors τ of their positions, in place. The same function multiplies the
/// gradients of queries in backward.
template <class C, class T, class B>
void scale_by_position(C& ctx, const QueryTemperature& of, Index position, Index length, View<T, 2, B> x) {
  if (of.floor_scale == 0) return;
  B::for_rows(ctx, x.extent(0), functor::ScaleByPosition<T, B>{of, position, length, x});
}

}  // namespace detail_::attending
}  // namespace gatefold
