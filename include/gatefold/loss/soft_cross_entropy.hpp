#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/loss/loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), ExpectedNegativeLogLikelihood, ExpectedNegativeLogLikelihoodBackward);

/// Softmax cross-entropy of logits y [N, C] with class probabilities (soft labels), for example after data::Mixup or
/// for distillation.
///
///     loss = −(1/N) Σ_n Σ_c target[n,c] log p[n,c],   p[n,:] = softmax y[n,:]                            (1)
///
/// Source: torch.nn.CrossEntropyLoss with class probabilities. If each row of `target` is 1 for one class and 0 for the
/// others, (1) is the loss of CrossEntropy.
/// @param y      [N, C] in   logits
/// @param target [N, C] in   probabilities. A row usually sums to 1. A row of zeros has loss 0 and still counts in N. A
///               class with target 0 may have the logit −∞
/// @throws ArgumentError unless y and target have the same shape, and targets are from 0 to 1 (values are checked only
///         on a host)
/// @cost   N·C exponentials forward, 2·N·C backward
struct SoftCrossEntropy {
  template <class T, class B>
  using Target = View<const T, 2, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<T, 2, B> target) const {
    detail_::loss::expect_probabilities<T, B>("SoftCrossEntropy", y, target);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    auto mark = ctx.mark();
    auto each = ctx.template scratch<T>(y.extent(0));
    B::for_rows(ctx, y.extent(0), functor::ExpectedNegativeLogLikelihood<T, B>{y, target, each});
    mean_loss<T, B>(ctx, y.extent(0), {y.extent(0)}, functor::Term<T>{each.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("SoftCrossEntropy.backward", "dy", dy, {y.extent(0), y.extent(1)});
    B::for_rows(ctx, y.extent(0),
                functor::ExpectedNegativeLogLikelihoodBackward<T, B>{y, target, 1 / static_cast<T>(y.extent(0)), dy});
  }
};

namespace functor {

/// Writes the loss of item n, −Σ_c t[n,c] log p[n,c]. Terms with t[n,c] = 0 are left out, so that 0 · ∞ is not NaN.
template <class T, class B>
struct ExpectedNegativeLogLikelihood {
  View<const T, 2, B> y, target;
  View<T, 1, B> value;  // [N]
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index classes = y.extent(1);
    const T *const row = y.data() + n * classes, *const t = target.data() + n * classes;
    const auto r = exp_sum<T>(lanes, classes, row);
    const T log_total = std::log(r.total);
    const T sum = sum_columns<T>(lanes, classes, [&](const auto& at, Index c) {
      using functor::math::where_positive;
      const auto p = at.load(t + c);
      return where_positive(p, p * (log_total - (at.load(row + c) - r.top)), std::remove_const_t<decltype(p)>(T(0)));
    });
    if (lanes.lane == 0) value(n) = sum;
  }
};
/// Writes the gradient of the logits, (p[n,c] Σ_k t[n,k] − t[n,c]) / N.
template <class T, class B>
struct ExpectedNegativeLogLikelihoodBackward {
  View<const T, 2, B> y, target;
  T mean;  // 1 / N
  View<T, 2, B> dy;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    using functor::math::exp;
    const Index classes = y.extent(1);
    const T *const row = y.data() + n * classes, *const t = target.data() + n * classes;
    const auto r = exp_sum<T>(lanes, classes, row);
    const T total = sum_columns<T>(lanes, classes, [&](const auto& at, Index c) { return at.load(t + c); });
    const T scale = mean * total / r.total;
    each_column<T>(lanes, classes, [&](const auto& at, Index c) {
      at.store(&dy(n, c), scale * exp(at.load(row + c) - r.top) - mean * at.load(t + c));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
