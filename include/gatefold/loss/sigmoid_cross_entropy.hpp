#pragma once

#include "gatefold/backend/math.hpp"
#include "gatefold/loss/loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), SigmoidCrossEntropyTerm, SigmoidCrossEntropyBackward);

/// Sigmoid cross-entropy of logits y [N, C] for items with several labels. Each class is one binary decision.
///
///     loss = (1 / N·C) Σ_{n,c} (log(1 + exp y[n,c]) − target[n,c] y[n,c])                                (1)
///
/// (1) is −t log σ(y) − (1 − t) log(1 − σ(y)) with the sigmoid σ, as a mean over items and classes.
/// Source: torch.nn.BCEWithLogitsLoss. The code of V-MoE (Riquelme et al. 2021, arXiv:2106.05974) takes the sum over
/// the classes instead, which is C times (1).
/// @param y      [N, C] in   logits
/// @param target [N, C] in   1 if the item has the label, otherwise 0; values between are allowed, for example after
///               data::Mixup
/// @throws ArgumentError unless y and target have the same shape, and targets are from 0 to 1 (values are checked only
///         on a host)
/// @cost   N·C exponentials forward and N·C backward; N·C logarithms forward
struct SigmoidCrossEntropy {
  template <class T, class B>
  using Target = View<const T, 2, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<T, 2, B> target) const {
    detail_::loss::expect_probabilities<T, B>("SigmoidCrossEntropy", y, target);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    mean_loss<T, B>(ctx, y.size(), {y.size()}, functor::SigmoidCrossEntropyTerm<T>{y.data(), target.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<T, 2, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("SigmoidCrossEntropy.backward", "dy", dy, {y.extent(0), y.extent(1)});
    B::for_each(
        ctx, y.size(),
        functor::SigmoidCrossEntropyBackward<T>{y.data(), target.data(), 1 / static_cast<T>(y.size()), dy.data()});
  }
};

namespace functor {

/// Returns the term i of the sum (1) of SigmoidCrossEntropy: (1 − t) y + log(1 + exp(−y)) if the logit y is positive,
/// otherwise −t y + log(1 + exp y). These forms do not subtract large numbers from each other, so the term is accurate
/// for logits of any size.
template <class T>
struct SigmoidCrossEntropyTerm {
  const T *y, *target;
  GATEFOLD_HD T operator()(Index i) const {
    const T v = y[i], t = target[i];
    return (v > 0 ? (1 - t) * v : -t * v) + functor::math::softplus(v > 0 ? -v : v);
  }
};
/// Writes the gradient of a logit, (σ(y) − t) / N·C, as (1 − t) σ(y) − t σ(−y). This form is accurate even if σ(y) is
/// almost t.
template <class T>
struct SigmoidCrossEntropyBackward {
  using Element = T;
  const T *y, *target;
  T scale;  // 1 / N·C
  T* dy;
  GATEFOLD_HD void operator()(const auto& at, Index i) const {
    using functor::math::abs, functor::math::exp, functor::math::reciprocal, functor::math::where_positive;
    const auto v = at.load(y + i), t = at.load(target + i);
    const auto e = exp(-abs(v)), large = reciprocal(T(1) + e), small = e * large;  // σ(|y|), σ(−|y|)
    at.store(dy + i, scale * ((T(1) - t) * where_positive(v, large, small) - t * where_positive(v, small, large)));
  }
};

}  // namespace functor

}  // namespace gatefold
