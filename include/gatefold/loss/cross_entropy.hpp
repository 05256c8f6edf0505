#pragma once

#include <cmath>

#include "gatefold/core/config.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

namespace fn {

/// log Σ_c exp y[n,c] − y[n, label], relative to the largest logit: nothing overflows, and nothing cancels in float
template <class T, class B>
struct NegativeLogLikelihood {
  struct Row {
    T top, total;  // max_c y[n,c],  Σ_c exp(y[n,c] − top)
  };
  View<const T, 2, B> y;
  View<const Index, 1, B> label;
  GATEFOLD_HD Row row(Index n) const {
    Row r{y(n, 0), 0};
    for (Index c = 1; c < y.extent(1); ++c) r.top = y(n, c) > r.top ? y(n, c) : r.top;
    for (Index c = 0; c < y.extent(1); ++c) r.total += std::exp(y(n, c) - r.top);
    return r;
  }
  GATEFOLD_HD T operator()(Index n) const {
    GATEFOLD_ASSERT(0 <= label(n) && label(n) < y.extent(1), "CrossEntropy: label out of range");
    const Row r = row(n);
    return std::log(r.total) - (y(n, label(n)) - r.top);
  }
};
template <class T, class B>
struct NegativeLogLikelihoodBackward {
  NegativeLogLikelihood<T, B> loss;
  View<T, 2, B> dy;
  GATEFOLD_HD void operator()(Index n) const {
    const auto r = loss.row(n);
    const T scale = 1 / static_cast<T>(dy.extent(0));
    for (Index c = 0; c < dy.extent(1); ++c)
      dy(n, c) = scale * (std::exp(loss.y(n, c) - r.top) / r.total - (c == loss.label(n) ? T(1) : T(0)));
  }
};

}  // namespace fn

/// Softmax cross-entropy with class labels.
///
///     loss = (1/N) Σ_n (log Σ_c exp y[n,c] − y[n, label[n]])                                             (1)
///
/// Source: as torch.nn.CrossEntropyLoss.
/// @param y      [N, C] in   logits
/// @param target [N]    in   labels in [0, C)
/// @throws ArgumentError unless there is one label per row, in range (on a device: in debug builds)
/// @cost   N·C exponentials
struct CrossEntropy {
  template <class T, class B>
  using Target = View<const Index, 1, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<Index, 1, B> target) const {
    expect_shape("CrossEntropy", "target", target, {y.extent(0)});
    if constexpr (B::is_host)  // N comparisons against a gradient that would be wrong in silence
      for (Index n = 0; n < target.size(); ++n)
        expect(0 <= target(n) && target(n) < y.extent(1), "CrossEntropy", "target",
               Joined{"labels from 0 to ", y.extent(1) - 1}, target(n));
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    loss::mean<T, B>(ctx, y.extent(0), y.extent(0), fn::NegativeLogLikelihood<T, B>{y, target}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("CrossEntropy.backward", "dy", dy, {y.extent(0), y.extent(1)});
    B::for_each(ctx, y.extent(0), fn::NegativeLogLikelihoodBackward<T, B>{{y, target}, dy});
  }
};

}  // namespace gatefold
