#pragma once

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace fn {

/// u[n] = (1/count) Σ_l x[n,l], l < count
template <class T, class B>
struct MeanOfTokens {
  Index count;
  View<const T, 2, B> x;  // [N, length · D]
  View<T, 2, B> u;        // [N, D]

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index width = u.extent(1);
    const T* const from = x.data() + n * x.extent(1);
    T* const to = u.data() + n * width;
    const T share = 1 / static_cast<T>(count);
    each_column<T>(lanes, width, [&](const auto& at, Index j) {
      auto sum = at.load(from + j);
      for (Index l = 1; l < count; ++l) sum += at.load(from + l * width + j);
      at.store(to + j, sum * share);
    });
  }
};
/// dx[n,l] += du[n] / count, l < count
template <class T, class B>
struct MeanOfTokensBackward {
  Index count;
  View<const T, 2, B> du;
  View<T, 2, B> dx;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index width = du.extent(1);
    const T* const from = du.data() + n * width;
    T* const to = dx.data() + n * dx.extent(1);
    const T share = 1 / static_cast<T>(count);
    each_column<T>(lanes, width, [&](const auto& at, Index j) {
      const auto d = at.load(from + j) * share;
      for (Index l = 0; l < count; ++l) at.store(to + l * width + j, at.load(to + l * width + j) + d);
    });
  }
};

}  // namespace fn

/// One row of each sequence: the mean of its first tokens, of one or of all.
///
///     u[n] = (1/count) Σ_{l < count} x[n,l]                                                             (1)
///
/// Source: count = 1 reads the class token, Dosovitskiy et al. 2021, arXiv:2010.11929, eq. (4); count = length is
/// global average pooling, Beyer et al. 2022, arXiv:2205.01580. A branch; items are sequences.
/// @param x [N, length · D] in, u [N, D] out
/// @param count  0: length
/// @throws ArgumentError unless length, model_dim >= 1, 0 <= count <= length and shapes fit
/// @cost   N·count·D additions
/// @order  tokens are summed in order
struct TokenMean {
  Index length = 0, model_dim = 0, count = 0;

  Index in_dim() const { return length * model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Nothing<T, B>&) const {
    expect(length >= 1, "TokenMean", "length", "at least 1", length);
    expect(model_dim >= 1, "TokenMean", "model_dim", "at least 1", model_dim);
    expect(0 <= count && count <= length, "TokenMean", "count", Joined{"0 to length = ", length}, count);
  }
  template <class T, class B, class Step = fn::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    validate(p, x.extent(0), extra);
    expect_forward_shapes("TokenMean.forward", *this, x, "u", u);
    B::for_rows(ctx, x.extent(0), fn::MeanOfTokens<T, B>{counted(), x, u});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    validate(p, x.extent(0), extra);
    expect_backward_shapes("TokenMean.backward", *this, x, du, dx);
    B::for_rows(ctx, x.extent(0), fn::MeanOfTokensBackward<T, B>{counted(), du, dx});
  }

 private:
  Index counted() const { return count > 0 ? count : length; }
};

}  // namespace gatefold
