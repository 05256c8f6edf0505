#pragma once

#include <cmath>
#include <initializer_list>

#include "gatefold/attention/blocks.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SplitHeads);

namespace detail_::attending {

/// The order of rows in which every head of every sequence has contiguous rows, which a product can read as a matrix.
/// With H heads and L items per sequence, head h of item g·L + l is row (g·H + h)·L + l. If all items are one sequence,
/// the rows are sorted by head.
struct HeadRows {
  Index heads = 1, length = 1;

  GATEFOLD_HD Index row(Index item, Index head) const {
    return (item / length * heads + head) * length + item % length;
  }
  GATEFOLD_HD Index item(Index row) const { return heads == 1 ? row : row / (length * heads) * length + row % length; }
  GATEFOLD_HD Index head(Index row) const { return row / length % heads; }
};

/// Returns a copy of x [N, H · width] in which each of H heads has separate rows [N · H, width] (see HeadRows), in
/// scratch memory. Returns x itself if there is one head.
/// @param in_use  which of the N items are in use; the rows of all other items are not written
template <class C, class T, class B>
View<const T, 2, B> split_heads(C& ctx, HeadRows rows, View<const T, 2, B> x, const InUse<B>& in_use = {}) {
  if (rows.heads == 1) return x;
  const auto split = ctx.template scratch<T>(x.extent(0) * rows.heads, x.extent(1) / rows.heads);
  for_rows(ctx, x.extent(0), in_use, functor::SplitHeads<T, B>{rows, x, split});
  return split;
}

inline void expect_heads(const char* where, Index model_dim, Index heads) {
  expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
  expect(heads >= 1 && model_dim % heads == 0, where, "heads", Joined{"a divisor of model_dim = ", model_dim}, heads);
}
void expect_projections(const char* where, const auto& p, std::initializer_list<Index> extents) {
  expect_shape(where, "params.query", p.query, extents);
  expect_shape(where, "params.key", p.key, extents);
  expect_shape(where, "params.value", p.value, extents);
  expect_shape(where, "params.output", p.output, extents);
}

/// Writes the matrix product y = x w.
template <class T, class B>
void project(typename B::Context& ctx, In<T, 2, B> x, const Tensor<T, 2, B>& w, Out<T, 2, B> y) {
  B::gemm(ctx, x, false, w.view(), false, false, y, functor::Store{});
}
/// Backward pass of y = x w: adds dy wᵀ to dx, and xᵀ dy to dw unless dw is skipped (marked as not needed).
template <class T, class B>
void project_backward(typename B::Context& ctx, In<T, 2, B> x, const Tensor<T, 2, B>& w, In<T, 2, B> dy,
                      Out<T, 2, B> dx, Tensor<T, 2, B>& dw) {
  if (!dw.is_skipped()) B::gemm(ctx, x, true, dy, false, true, dw.view(), functor::Store{});
  B::gemm(ctx, dy, false, w.view(), true, true, dx, functor::Store{});
}

}  // namespace detail_::attending

namespace functor {

/// Gives each head a separate row: writes the columns of head h in from[n, :] to the row to[row(n, h), :], for all h.
template <class T, class B>
struct SplitHeads {
  detail_::attending::HeadRows rows;
  View<const T, 2, B> from;  // [N, H · width]
  View<T, 2, B> to;          // [N · H, width]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index width = to.extent(1);
    for (Index h = 0; h < rows.heads; ++h) {
      const T* const part = &from(n, h * width);
      T* const row = &to(rows.row(n, h), 0);
      each_column<T>(lanes, width, [&](auto at, Index c) { at.store(row + c, at.load(part + c)); });
    }
  }
};
/// Adds the separate rows of the heads to rows that contain all heads: adds from[row(n,h),:] to the columns of head h
/// of to[n,:], for all h.
template <class T, class B>
struct AddHeads {
  detail_::attending::HeadRows rows;
  View<const T, 2, B> from;  // [N · H, width]
  View<T, 2, B> to;          // [N, H · width]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index width = from.extent(1);
    for (Index h = 0; h < rows.heads; ++h) {
      const T* const row = &from(rows.row(n, h), 0);
      T* const part = &to(n, h * width);
      each_column<T>(lanes, width, [&](auto at, Index c) { at.store(part + c, at.load(part + c) + at.load(row + c)); });
    }
  }
};
/// Copies each key or value head for the `group` query heads that share it: to[n, head h] = from[n, head h / group].
template <class T, class B>
struct RepeatHeads {
  Index width, group;
  View<const T, 2, B> from;  // [N, kv_heads · width]
  View<T, 2, B> to;          // [N, heads · width]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    for (Index h = 0; h * width < to.extent(1); ++h) {
      const T* const shared = &from(n, h / group * width);
      T* const head = &to(n, h * width);
      each_column<T>(lanes, width, [&](auto at, Index c) { at.store(head + c, at.load(shared + c)); });
    }
  }
};
/// Backward pass of RepeatHeads: to[n, head g] = the sum of from[n, head h] over the query heads h that share head g.
template <class T, class B>
struct SumHeads {
  Index width, group;
  View<const T, 2, B> from;  // [N, heads · width]
  View<T, 2, B> to;          // [N, kv_heads · width]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    for (Index g = 0; g * width < to.extent(1); ++g) {
      const T* const first = &from(n, g * group * width);
      T* const sum = &to(n, g * width);
      each_column<T>(lanes, width, [&](auto at, Index c) {
        auto total = at.load(first + c);
        for (Index h = 1; h < group; ++h) total = total + at.load(first + h * width + c);
        at.store(sum + c, total);
      });
    }
  }
};
/// Multiplies the context of each head by σ = sigmoid(log_sum_exp − sink), the share of the attention that the learned
/// sink leaves to the keys.
template <class T, class B>
struct ApplySinks {
  View<const T, 2, B> log_sum_exp, sink, from;  // [N, heads], [1, heads], [N, heads · F]
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index heads = sink.extent(1), width = from.extent(1) / heads;
    for (Index h = 0; h < heads; ++h) {
      const T share = 1 / (1 + std::exp(sink(0, h) - log_sum_exp(n, h)));
      each_column<T>(lanes, width, [&](auto at, Index c) {
        at.store(&to(n, h * width + c), at.load(&from(n, h * width + c)) * share);
      });
    }
  }
};
/// Backward pass of ApplySinks. Replaces `d`, the gradient of σ · context, by the gradient of the context. Writes the
/// gradients of log_sum_exp and of the sinks for each item: dlog_sum_exp = ⟨d, context⟩ σ (1 − σ) = −dsink.
template <class T, class B>
struct ApplySinksBackward {
  View<const T, 2, B> log_sum_exp, sink, context;
  View<T, 2, B> d, dlog_sum_exp, dsink;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index heads = sink.extent(1), width = context.extent(1) / heads;
    for (Index h = 0; h < heads; ++h) {
      const T share = 1 / (1 + std::exp(sink(0, h) - log_sum_exp(n, h)));
      const T along = sum_columns<T>(lanes, width, [&](auto at, Index c) {
        const auto v = at.load(&d(n, h * width + c));
        at.store(&d(n, h * width + c), v * share);
        return v * at.load(&context(n, h * width + c));
      });
      if (lanes.lane != 0) continue;
      dlog_sum_exp(n, h) = along * share * (1 - share);
      dsink(n, h) = -dlog_sum_exp(n, h);
    }
  }
};

}  // namespace functor

}  // namespace gatefold
