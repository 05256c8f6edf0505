#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gatefold/backend/cuda/bf16_matrix.cuh"
#include "gatefold/backend/cuda/bf16_product.cuh"
#include "gatefold/backend/cuda/hopper_product.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/types.hpp"

/// The grouped products of floats that are rounded to bfloat16 first: items by one pass over them, weights by one for
/// each product, or before, where copies are in use; what is between two products of a pair is never a float in memory.
namespace gatefold::device {

/// Whether Hopper's kernel sums a product whose slots are rows: where most of its large tiles would be used. Bits are
/// the same either way.
template <class Context, class B>
bool uses_hopper(Context& ctx, const Groups<B>& g, Index columns) {
  return columns >= HopperTile::columns / 2 && bf16_tile_rows(g.slots, g.experts()) == Bf16ManyRows::rows &&
         ctx.has_hopper_code();
}

/// a, rounded in scratch, in the order of its rows or of the slots: of those the ones in use alone. What is rounded
/// already, in whole units and in the right order, is read where it is.
/// @tparam A  float or Bfloat16
template <class A, class Context, class B>
Bf16Matrix rounded_rows(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, const Index* rows,
                        bool in_slot_order) {
  const bool slots = in_slot_order || !rows;
  const Index count = slots ? g.slots : a.extent(0), stride = bf16_stride(a.extent(1));
  if constexpr (std::is_same_v<A, Bfloat16>)
    if (stride == a.extent(1) && !(slots && rows) && reinterpret_cast<std::uintptr_t>(a.data()) % 16 == 0)
      return {a.data(), stride, rows};
  auto to = ctx.template scratch<Bfloat16>(count, stride);
  RoundedRows which;
  if (slots) which = {g.offsets.data(), g.experts(), rows};
  round_rows(ctx.product_stream(), count, a.extent(1), a.data(), to.data(), which, ctx.multiprocessors());
  return {to.data(), stride, slots ? nullptr : rows};
}

/// Weights as they were packed, or those of experts that have slots, rounded in scratch.
template <class Context, class B, std::size_t M>
EachBf16<static_cast<int>(M)> rounded_weights(Context& ctx, const Groups<B>& g,
                                              const std::array<View<const float, 3, B>, M>& w) {
  EachBf16<static_cast<int>(M)> each;
  for (std::size_t m = 0; m < M; ++m) {
    const Index rows = w[m].extent(0) * w[m].extent(1), columns = w[m].extent(2);
    const Bfloat16* data = ctx.packed(w[m].data(), columns);
    if (data) {
      expect_rounded(ctx, w[m].data(), rows, columns, data);
    } else {
      auto to = ctx.template scratch<Bfloat16>(rows, bf16_stride(columns));
      round_rows(ctx.product_stream(), rows, columns, w[m].data(), to.data(),
                 RoundedRows{.offsets = g.offsets.data(), .each = w[m].extent(1)});
      data = to.data();
    }
    each.of[m] = {data, bf16_stride(columns)};
  }
  return each;
}

/// c[s] = epilogue(a[row(s)] op(w_0[e]), …)
/// @param a       rounded, [.., depth]
/// @param hopper  by Hopper's kernel, for which a is in slot order
/// @param c       rows of `stride` values
template <class C, class Context, class B, std::size_t M, class E>
void bf16_product(Context& ctx, bool hopper, const Groups<B>& g, const Bf16Matrix& a, Index depth,
                  const std::array<View<const float, 3, B>, M>& w, bool transpose, Index columns, C* c, Index stride,
                  const E& epilogue) {
  expect_int("Cuda::grouped_gemm", depth);
  const auto each = rounded_weights(ctx, g, w);
  const Index step = w[0].extent(1) * bf16_stride(w[0].extent(2));
  const auto run = [&]<Layout OfB>(std::integral_constant<Layout, OfB>) {
    if (hopper)
      return hopper_slots_are_rows<OfB>(ctx, a, each, step, g.offsets.data(), g.experts(), g.slots, columns, depth, c,
                                        stride, epilogue);
    bf16_slots_are_rows<OfB>(ctx, a, each, step, g.offsets.data(), g.experts(), g.slots, columns, depth, c, stride,
                             epilogue);
  };
  if (transpose) {
    if constexpr (M == 1) run(std::integral_constant<Layout, Layout::along_depth>{});
  } else {
    run(std::integral_constant<Layout, Layout::along_lines>{});
  }
}

/// c[s] = epilogue(a[row(s)] op(w[e]))
template <class A, class Context, class B, class E>
void bf16_gemm(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, View<const float, 3, B> w, bool transpose,
               View<float, 2, B> c, const E& epilogue) {
  const auto mark = ctx.mark();
  const bool hopper = uses_hopper(ctx, g, c.extent(1));
  bf16_product(ctx, hopper, g, rounded_rows(ctx, g, a, g.rows.data(), hopper), a.extent(1), std::array{w}, transpose,
               c.extent(1), c.data(), c.extent(1), epilogue);
}

/// c[s] = last(middle(a[row(s)] up_0[e], …) down[e])
template <class Context, class B, std::size_t M, class E, class L>
void bf16_pair(Context& ctx, const Groups<B>& g, View<const float, 2, B> a,
               const std::array<View<const float, 3, B>, M>& up, const E& middle, View<const float, 3, B> down,
               View<float, 2, B> c, const L& last) {
  const auto mark = ctx.mark();
  const Index columns = down.extent(1), stride = bf16_stride(columns);
  auto hidden = ctx.template scratch<Bfloat16>(g.slots, stride);
  const bool hopper = uses_hopper(ctx, g, columns);
  bf16_product(ctx, hopper, g, rounded_rows(ctx, g, a, g.rows.data(), hopper), a.extent(1), up, false, columns,
               hidden.data(), stride, middle);
  bf16_product(ctx, uses_hopper(ctx, g, c.extent(1)), g, Bf16Matrix{hidden.data(), stride}, columns, std::array{down},
               false, c.extent(1), c.data(), c.extent(1), last);
}

/// dw[e] (+)= Σ_s a[row(s)]ᵀ dc[s], or dc[dc_rows[s]] where these are given
template <class A, class D, class Context, class B>
void bf16_outer(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, View<const D, 2, B> dc,
                View<const Index, 1, B> dc_rows, bool accumulate, View<float, 3, B> dw) {
  const auto mark = ctx.mark();
  const bool hopper =
      dw.extent(1) >= HopperTile::rows / 2 && dw.extent(2) >= HopperTile::columns / 2 && ctx.has_hopper_code();
  const Bf16Matrix of_a = rounded_rows(ctx, g, a, g.rows.data(), hopper),
                   of_dc = rounded_rows(ctx, g, dc, dc_rows.data(), hopper);
  if (hopper)
    return hopper_slots_are_depth(ctx, of_a, of_dc, g.offsets.data(), g.experts(), g.slots, dw.extent(1), dw.extent(2),
                                  accumulate, dw.data());
  bf16_slots_are_depth(ctx, of_a, of_dc, g.offsets.data(), g.experts(), dw.extent(1), dw.extent(2), accumulate,
                       dw.data());
}

}  // namespace gatefold::device
