#pragma once

#include "gatefold/backend/lanes.hpp"

namespace gatefold {

namespace functor {

/// Calls the functor f as f(lanes, n, row) for row n of the matrix c; `row` is the address of the row, `lanes` the
/// threads that share it.
template <class F, class T, class B>
struct OnRow {
  F f;
  View<T, 2, B> c;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const { f(lanes, n, c.data() + n * c.extent(1)); }
};

/// Calls f(lanes, s, row) if slot s (a row of work of an expert) is in use; `row` is the address of row s of the matrix
/// c. Slots outside the range of `offsets` are not in use.
template <class F, class T, class B>
struct OnSlot {
  F f;
  View<const Index, 1, B> offsets;
  View<T, 2, B> c;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index begin = from_first(lanes, [&] { return offsets(0); });
    const Index end = from_first(lanes, [&] { return offsets(offsets.extent(0) - 1); });
    if (s < begin || s >= end) return;
    f(lanes, s, c.data() + s * c.extent(1));
  }
};

}  // namespace functor

/// Computes the matrix product a op(b) with an epilogue (a functor that is applied to each element), and then calls
/// `then` with a view of the result. The result is stored in c, or in scratch (temporary memory of the context) if c
/// has no memory.
template <class T, class B, class E, class F>
void gemm_then(auto& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb, View<T, 2, B> c, const E& epilogue,
               const F& then) {
  const auto mark = ctx.mark();
  const View<T, 2, B> rows = c.data() ? c : ctx.template scratch<T>(c.extent(0), c.extent(1));
  B::gemm(ctx, a, false, b, tb, false, rows, epilogue);
  then(rows);
}
/// Implements the primitive gemm_rows (backend.hpp), a matrix product with a call of f for each row of the result, as a
/// gemm followed by for_rows. Backends use this function if they do not keep rows in a cache, or if the rows are too
/// long for a cache.
/// @param a  [N, D] in
/// @param b  [D, E] in; if `tb` is true, [E, D]
/// @param c  [N, E] out; if c has no memory (its pointer is null), the rows are computed in scratch
/// @cost   2·N·D·E flop and a pass over c
template <class T, class B, class E, class F>
void gemm_then_rows(auto& ctx, View<const T, 2, B> a, View<const T, 2, B> b, bool tb, View<T, 2, B> c,
                    const E& epilogue, const F& f) {
  gemm_then(ctx, a, b, tb, c, epilogue, [&](View<T, 2, B> rows) {
    B::for_rows(ctx, rows.extent(0), functor::OnRow<F, T, B>{f, rows});
  });
}

}  // namespace gatefold
