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
#include "gatefold/backend/cuda/quantised_matrix.cuh"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/gemm_rows.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/core/weights.hpp"

/// Grouped products (one matrix product for each expert, in one call) whose float factors are rounded to bfloat16.
/// Items are rounded in one pass. Weights are rounded in one pass for each product, or once in advance if the context
/// has packed copies. The hidden values between the two products of a pair, as in an MLP, are stored only in bfloat16.
namespace gatefold::detail_::device {

/// Returns whether the kernel for Hopper GPUs (hopper_product.cuh) should compute a grouped product. The program must
/// have code of this kernel for the device. An average expert must fill more than half of the rows and at least half of
/// the columns of one of the kernel's large tiles. The results of this kernel have the same bits as the results of
/// bf16_product.cuh.
template <class Context, class B>
bool uses_hopper(Context& ctx, const Groups<B>& g, Index columns) {
  return columns >= HopperTile::columns / 2 && bf16_tile_rows(g.slots, g.experts()) == Bf16ManyRows::rows &&
         ctx.has_hopper_code();
}

/// Memory for rows that have been rounded to bfloat16. It is scratch memory, or the memory of an output matrix that is
/// written only after the rounded rows have been read.
struct RoomForRows {
  Bfloat16* data;
  Index stride;
};
template <class Context, class B, class C>
RoomForRows room_for_rows(Context& ctx, Index slots, Index columns, View<C, 2, B> room) {
  const Index stride = bf16_stride(columns), bytes = room.extent(1) * Index(sizeof(C));
  if (room.extent(0) >= slots && bytes >= stride * Index(sizeof(Bfloat16)) && bytes % 16 == 0 &&
      reinterpret_cast<std::uintptr_t>(room.data()) % 16 == 0)
    return {reinterpret_cast<Bfloat16*>(room.data()), bytes / Index(sizeof(Bfloat16))};
  return {ctx.template scratch<Bfloat16>(slots, stride).data(), stride};
}

/// Returns whether two views share memory.
template <class A, class C, class B>
bool overlap(View<A, 2, B> a, View<C, 2, B> c) {
  const auto begin = [](const auto& v) { return reinterpret_cast<std::uintptr_t>(v.data()); };
  const auto end = [](const auto& v) { return reinterpret_cast<std::uintptr_t>(v.data() + v.size()); };
  return begin(a) < end(c) && begin(c) < end(a);
}

/// Returns the matrix `a` rounded to bfloat16. If `in_slot_order` is true or `rows` is null, the result has one row for
/// each slot (row of work of an expert), sorted by expert, and only the rows of slots in use are rounded. Otherwise the
/// rows keep the order of `a`, and the result has the row numbers `rows`. No copy is made if the context already has a
/// rounded copy, or if `a` is bfloat16 with suitable alignment and order.
/// @tparam A    the type of the values of a: float or Bfloat16
/// @param room  memory for a result in slot order. It is used if it is large enough, aligned, and does not overlap a;
///         otherwise the result is in scratch memory
template <class A, class Context, class B, class C>
Bf16Matrix rounded_rows(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, const Index* rows, bool in_slot_order,
                        View<C, 2, B> room) {
  const bool slots = in_slot_order || !rows;
  const Index columns = a.extent(1), stride = bf16_stride(columns);
  if constexpr (std::is_same_v<A, Bfloat16>) {
    if (stride == columns && !(slots && rows) && reinterpret_cast<std::uintptr_t>(a.data()) % 16 == 0)
      return {a.data(), stride, rows};
  } else if (const Bf16Matrix* shared = ctx.shared(a.data(), columns, rows)) {
    return *shared;
  }
  RoundedRows which;
  if (slots) which = {g.offsets.data(), g.experts(), rows};
  const Index count = slots ? g.slots : a.extent(0);
  const RoomForRows to = room_for_rows(ctx, count, columns, slots && !overlap(a, room) ? room : View<C, 2, B>{});
  round_rows(ctx.product_stream(), count, columns, a.data(), to.data, to.stride, which, ctx.multiprocessors());
  return {to.data, to.stride, slots ? nullptr : rows};
}
template <class A, class Context, class B>
Bf16Matrix rounded_rows(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, const Index* rows,
                        bool in_slot_order) {
  return rounded_rows(ctx, g, a, rows, in_slot_order, View<float, 2, B>{});
}

/// A functor of rows: adds up the partial sums in `row`, and calls f(lanes, n, total). `lanes` are the threads that
/// process row n together.
template <class F>
struct SumOfRow {
  F f;
  Index columns;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n, const ColumnSum* row) const {
    f(lanes, n, sum_elements<float>(lanes, columns, [&](const auto&, Index j) { return row[j].value; }));
  }
};

/// Rounds to bfloat16 the rows of `a` that the slots of the experts read. While the returned object lives, all grouped
/// products that read these rows of `a` use the rounded copy.
/// @param room  memory in which the rounded rows can be stored, as in rounded_rows
template <class Context, class B, class C>
[[nodiscard]] auto round_for_products(Context& ctx, const Groups<B>& g, View<const float, 2, B> a, View<C, 2, B> room) {
  // The kernel for Hopper requires slot order (rows sorted by expert); all kernels accept it.
  const bool in_slot_order = ctx.has_hopper_code();
  const Bf16Matrix rounded = rounded_rows(ctx, g, a, g.rows.data(), in_slot_order, room);
  return ctx.share(a.data(), a.extent(1), g.rows.data(), rounded);
}

/// Returns the weights `w` in bfloat16. If a matrix has no copy of 8 or 4 bits, but a packed bfloat16 copy (rounded in
/// advance), the function returns the packed copy. Otherwise it rounds the weights of the experts that have slots into
/// scratch memory: from the copy of 8 or 4 bits if there is one, else from the original weights.
template <class Context, class B, std::size_t M>
EachBf16<static_cast<int>(M)> rounded_weights(Context& ctx, const Groups<B>& g,
                                              const std::array<View<const float, 3, B>, M>& w) {
  EachBf16<static_cast<int>(M)> each;
  for (std::size_t m = 0; m < M; ++m) {
    const Index rows = w[m].extent(0) * w[m].extent(1), columns = w[m].extent(2);
    const QuantisedMatrix* const quantised = ctx.quantised(w[m].data());
    const Bfloat16* data = quantised ? nullptr : ctx.packed(w[m].data(), columns);
    if (data) {
      expect_rounded(ctx, w[m].data(), rows, columns, data);
    } else {
      auto to = ctx.template scratch<Bfloat16>(rows, bf16_stride(columns));
      const RoundedRows which{.offsets = g.offsets.data(), .each = w[m].extent(1)};
      if (quantised) {
        round_rows(ctx.product_stream(), rows, columns, *quantised, to.data(), which);
      } else {
        expect_elements("Cuda.grouped_gemm", w[m].data());
        round_rows(ctx.product_stream(), rows, columns, w[m].data(), to.data(), which);
      }
      data = to.data();
    }
    each.of[m] = {data, bf16_stride(columns)};
  }
  return each;
}

/// Calls f with `transpose` as a compile-time constant. If `transpose` is a run-time bool, f and the kernels that it
/// launches are compiled for both values.
template <bool Transpose, class F>
void with_constant(std::bool_constant<Transpose> transpose, const F& f) {
  f(transpose);
}
template <class F>
void with_constant(bool transpose, const F& f) {
  if (transpose) {
    f(as_transposed);
  } else {
    f(as_stored);
  }
}

/// Computes a grouped product of bfloat16 matrices: c[s] = epilogue(a[row(s)] op(w[e])) for each slot s (one row of
/// work of expert e). row(s) is the row of `a` that the slot reads; op(w) is w or its transpose. With one `a` and two
/// matrices w, the epilogue gets both sums. With several a, the epilogue gets the sum Σ_t a_t[row(s)] op(w_t[e]).
/// @tparam Rows      whether the rows of `a` can be in any order, or are always in slot order (sorted by expert)
/// @param a          rounded matrices, each [.., depth]
/// @param hopper     whether to use the kernel for Hopper. If true, the rows of `a` must be in slot order
/// @param transpose  a bool, as_transposed or as_stored
/// @param c          the results, in rows of `stride` values
template <RowsOfA Rows = RowsOfA::any, int Terms, class Transpose, class C, class Context, class B, std::size_t M,
          class E>
void bf16_product(Context& ctx, bool hopper, const Groups<B>& g, const EachBf16<Terms>& a, Index depth,
                  const std::array<View<const float, 3, B>, M>& w, Transpose transpose, Index columns, C* c,
                  Index stride, const E& epilogue) {
  expect_int("Cuda::grouped_gemm", "depth", depth);
  const auto each = rounded_weights(ctx, g, w);
  const Index step = w[0].extent(1) * bf16_stride(w[0].extent(2));
  with_constant(transpose, [&]<bool Transposed>(std::bool_constant<Transposed>) {
    constexpr Layout of_b = Transposed ? Layout::along_depth : Layout::along_lines;
    if (hopper)
      return hopper_slots_are_rows<of_b>(ctx, a, each, step, g.offsets.data(), g.experts(), g.slots, columns, depth, c,
                                         stride, epilogue);
    bf16_slots_are_rows<of_b, Rows>(ctx, a, each, step, g.offsets.data(), g.experts(), g.slots, columns, depth, c,
                                    stride, epilogue);
  });
}

/// Computes the grouped product c[s] = epilogue(Σ_t a_t[row(s)] op(w_t[e])) for each slot s (one row of work of expert
/// e), after it has rounded `a` and the weights to bfloat16.
template <class A, class Transpose, class C, class Context, class B, std::size_t Terms, class E>
void bf16_gemm(Context& ctx, const Groups<B>& g, const std::array<View<const A, 2, B>, Terms>& a,
               const std::array<View<const float, 3, B>, Terms>& w, Transpose transpose, View<C, 2, B> c,
               const E& epilogue) {
  const auto mark = ctx.mark();
  const bool hopper = uses_hopper(ctx, g, c.extent(1));
  EachBf16<static_cast<int>(Terms)> factors;
  for (std::size_t t = 0; t < Terms; ++t) factors.of[t] = rounded_rows(ctx, g, a[t], g.rows.data(), hopper);
  bf16_product(ctx, hopper, g, factors, a[0].extent(1), w, transpose, c.extent(1), c.data(), c.extent(1), epilogue);
}

/// Computes a grouped product without storing it, and calls f(lanes, s, sum) for each slot s (row of work of expert e)
/// in use. `sum` is the sum over the columns j of epilogue(a[row(s)] op(w[e]))[j]. row(s) is the row of `a` that the
/// slot reads; op(w) is w or its transpose.
/// @order  adds up kSumColumns columns at a time as in finish_column_sum, then adds these sums as in sum_elements
template <class A, class Transpose, class Context, class B, class E, class F>
void bf16_gemm_sum(Context& ctx, const Groups<B>& g, View<const A, 2, B> a, View<const float, 3, B> w,
                   Transpose transpose, Index columns, const E& epilogue, const F& f) {
  const auto mark = ctx.mark();
  const View<ColumnSum, 2, B> sums = ctx.template scratch<ColumnSum>(g.slots, row_elements<ColumnSum>(columns));
  {
    const auto of_product = ctx.mark();
    const bool hopper = uses_hopper(ctx, g, columns);
    bf16_product(ctx, hopper, g, EachBf16<1>{rounded_rows(ctx, g, a, g.rows.data(), hopper)}, a.extent(1),
                 std::array{w}, transpose, columns, sums.data(), columns, epilogue);
  }
  for_rows(ctx.product_stream(), g.slots,
           functor::OnSlot<SumOfRow<F>, ColumnSum, B>{{f, sums.extent(1)}, g.offsets, sums});
}

/// Computes two grouped products, one after the other, as in an MLP: c[s] = last(middle(a[row(s)] up[e]) down[e]) for
/// each slot s (one row of work of expert e). `middle` and `last` are the epilogues of the products (operations on
/// complete sums). With two matrices `up`, `middle` gets both sums.
template <class C, class Context, class B, std::size_t M, class E, class L>
void bf16_pair(Context& ctx, const Groups<B>& g, View<const float, 2, B> a,
               const std::array<View<const float, 3, B>, M>& up, const E& middle, View<const float, 3, B> down,
               View<C, 2, B> c, const L& last) {
  const auto mark = ctx.mark();
  const Index columns = down.extent(1), stride = bf16_stride(columns);
  auto hidden = ctx.template scratch<Bfloat16>(g.slots, stride);
  const bool hopper = uses_hopper(ctx, g, columns);
  bf16_product(ctx, hopper, g, EachBf16<1>{rounded_rows(ctx, g, a, g.rows.data(), hopper, c)}, a.extent(1), up,
               as_stored, columns, hidden.data(), stride, middle);
  bf16_product<RowsOfA::in_slot_order>(ctx, uses_hopper(ctx, g, c.extent(1)), g,
                                       EachBf16<1>{Bf16Matrix{hidden.data(), stride}}, columns, std::array{down},
                                       as_stored, c.extent(1), c.data(), c.extent(1), last);
}

/// Computes the gradient of each expert's weights: dw[e] is the sum of a[row(s)]ᵀ dc[s] over the slots s (rows of work)
/// of expert e. If dc_rows is given, row dc_rows[s] of dc is used instead of row s. If `accumulate` is true, the sum is
/// added to dw[e].
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

}  // namespace gatefold::detail_::device
