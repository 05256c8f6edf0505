#pragma once

#include "gatefold/backend/lanes.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

/// Averages the first `count` tokens of each sequence. The result has one row per sequence.
///
///     u[n] = (1/count) Σ_{l < count} x[n,l]                                                             (1)
///
/// Source: count = 1 reads the class token, Dosovitskiy et al. 2021, arXiv:2010.11929, eq. (4); count = length is
/// global average pooling, Beyer et al. 2022, arXiv:2205.01580. This is a branch, whose items are sequences.
/// @param x [N, length · D] in, u [N, D] out
/// @param count  the number of tokens to average; 0 means all `length` tokens
/// @throws ArgumentError if length < 1, model_dim < 1, count is not in [0, length] or a shape is wrong
/// @cost   N·count·D additions
/// @order  tokens are summed in order
struct TokenMean {
  Index length = 0, model_dim = 0, count = 0;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Nothing<T, B>&) const {
    expect_sizes("TokenMean", {{"length", length}, {"model_dim", model_dim}});
    expect(0 <= count && count <= length, "TokenMean", "count", Joined{"0 to length = ", length}, count);
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    validate(p, x.extent(0), extra);
    expect_forward_shapes("TokenMean.forward", *this, x, "u", u);
    B::for_rows(ctx, x.extent(0), functor::SumPositions<T, B>{counted(), share<T>(), x, u});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    validate(p, x.extent(0), extra);
    expect_backward_shapes("TokenMean.backward", *this, x, du, dx);
    B::for_rows(ctx, x.extent(0), functor::SumPositionsBackward<T, B>{counted(), share<T>(), du, dx});
  }

 private:
  Index counted() const { return count > 0 ? count : length; }
  template <class T>
  T share() const {
    return 1 / static_cast<T>(counted());
  }
};

}  // namespace gatefold
