#pragma once

#include <cmath>

#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/loss/loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), NegativeLogLikelihood, NegativeLogLikelihoodBackward, SoftmaxBackwardOfCounted);

/// Softmax cross-entropy of logits y [N, C] with class labels.
///
///     loss = (1/N) Σ_n (log Σ_c exp y[n,c] − y[n, label[n]])                                             (1)
///     twice:  (1) with softmax y[n,:] in place of y[n,:]                                                (2)
///     label_smoothing = ε:  (1) with (1 − ε) y[n, label[n]] + (ε/C) Σ_c y[n,c] in place of y[n, label[n]]   (3)
///
/// Source: torch.nn.CrossEntropyLoss. With `twice` (`CrossEntropy::reference()`), the loss is (2), as in the code of
/// papers 001 and 002 for classification. (2) is at least log(1 + (C − 1)/e). Label smoothing: Szegedy et al. 2015,
/// arXiv:1512.00567, sec. 7. With both options, softmax y[n,:] replaces y[n,:] in (3), too.
/// @param y       [N, C] in   logits
/// @param target  [N]    in   labels in [0, C)
/// @param ignore  label of the items that do not count, for example −1 for padding. Their dy is 0, and N is the number
///                of items that count. By default no label is ignored. If no item counts, the loss is 0
/// @param label_smoothing  ε in [0, 1]: the weight of the mean over all classes. 0 gives (1)
/// @throws ArgumentError unless each row has one label, in [0, C) or `ignore` (on a device, only debug builds check the
///         range), and label_smoothing is in [0, 1]
/// @cost   forward N·C exponentials, backward 2·N·C; with `twice` N·C exponentials more in both, and N·C values of
///         scratch forward, 2·N·C backward; with label smoothing also N·C additions forward
struct CrossEntropy {
  Index ignore = ignore_none;
  bool twice = false;
  double label_smoothing = 0;

  static CrossEntropy reference() { return reference({}); }
  static CrossEntropy reference(CrossEntropy options) {
    options.twice = true;
    return options;
  }

  template <class T, class B>
  using Target = View<const Index, 1, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<Index, 1, B> target) const {
    detail_::loss::expect_label_smoothing("CrossEntropy", label_smoothing);
    detail_::loss::expect_labels<B>("CrossEntropy", target, y.extent(0), y.extent(1), ignore);
  }
  /// Returns the number of labels that are not `ignore`.
  template <class C>
  Index counted(C& ctx, In<Index, 1, typename C::Backend> target) const {
    return detail_::loss::count_labels<typename C::Backend>(ctx, target, ignore);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    auto mark = ctx.mark();
    auto each = ctx.template scratch<T>(y.extent(0));
    B::for_rows(ctx, y.extent(0), likelihood<T, B>(logits<T, B>(ctx, y), target, each));
    mean_loss<T, B>(ctx, y.extent(0), detail_::loss::share_of_mean<B>(ctx, target, ignore),
                    functor::Term<T>{each.data()}, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 2, B> dy) const {
    validate<T, B>(y, target);
    expect_shape("CrossEntropy.backward", "dy", dy, {y.extent(0), y.extent(1)});
    auto mark = ctx.mark();
    const View<const T, 2, B> z = logits<T, B>(ctx, y);
    const View<T, 2, B> dz = twice ? ctx.template scratch<T>(y.extent(0), y.extent(1)) : dy;
    B::for_rows(ctx, y.extent(0),
                functor::NegativeLogLikelihoodBackward<T, B>{likelihood<T, B>(z, target, {}),
                                                             detail_::loss::share_of_mean<B>(ctx, target, ignore), dz});
    if (twice) B::for_rows(ctx, y.extent(0), functor::SoftmaxBackwardOfCounted<T, B>{{z, dz, dy}, target, ignore});
  }

 private:
  /// Returns the logits that enter the loss: y, or softmax(y) in scratch memory if `twice` is true.
  template <class T, class B>
  View<const T, 2, B> logits(typename B::Context& ctx, View<const T, 2, B> y) const {
    if (!twice) return y;
    auto p = ctx.template scratch<T>(y.extent(0), y.extent(1));
    B::for_rows(ctx, y.extent(0), functor::Softmax<T, B>{y, p});
    return p;
  }
  template <class T, class B>
  functor::NegativeLogLikelihood<T, B> likelihood(View<const T, 2, B> z, View<const Index, 1, B> label,
                                                  View<T, 1, B> value) const {
    const double of_class = label_smoothing / static_cast<double>(z.extent(1));
    return {z, label, ignore, static_cast<T>(1 - label_smoothing), static_cast<T>(of_class), value};
  }
};

namespace functor {

/// Writes the loss of item n, log Σ_c exp y[n,c] − Σ_c t[c] y[n,c], or 0 if its label is `ignore`. Here t is the target
/// distribution: 1 − ε + ε/C for the label and ε/C for the other classes. The largest logit is subtracted from all
/// logits first, so that no exponential overflows and differences of large logits stay exact. Without label smoothing,
/// a loss smaller than about 1e-7 (1e-16 in double) becomes 0.
template <class T, class B>
struct NegativeLogLikelihood {
  View<const T, 2, B> y;
  View<const Index, 1, B> label;
  Index ignore;
  T kept, of_class;     // 1 − ε, ε/C
  View<T, 1, B> value;  // [N]
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index l = label(n), classes = y.extent(1);
    const bool counts = l != ignore;
    GATEFOLD_ASSERT(!counts || (0 <= l && l < classes), "CrossEntropy: label out of range");
    const T* const row = y.data() + n * classes;
    const auto r = exp_sum<T>(lanes, classes, row);
    T rest = 0;  // (ε/C) Σ_c (y[n,c] − top)
    if (of_class > 0)
      rest =
          of_class * sum_columns<T>(lanes, classes, [&](const auto& at, Index c) { return at.load(row + c) - r.top; });
    if (lanes.lane == 0) value(n) = counts ? std::log(r.total) - (kept * (row[l] - r.top) + rest) : T(0);
  }
};
/// Writes the gradient of the logits, (softmax y − t) / N with the target distribution t of NegativeLogLikelihood, or 0
/// if the label is `ignore`. N is the number of items with a label that is not `ignore`.
template <class T, class B>
struct NegativeLogLikelihoodBackward {
  NegativeLogLikelihood<T, B> loss;
  ShareOfMean share;
  View<T, 2, B> dy;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    using functor::math::exp;
    const auto& y = loss.y;
    const Index l = loss.label(n);
    if (l == loss.ignore) return zero_columns(lanes, dy.data() + n * dy.extent(1), dy.extent(1));
    const auto r = exp_sum<T>(lanes, y.extent(1), y.data() + n * y.extent(1));
    const T mean = share.template of<T>(), scale = mean / r.total;
    // Without label smoothing, `low` is 0 and `high` is 1. They then change no bits of the gradient of (1).
    const T low = mean * loss.of_class, high = loss.kept + loss.of_class;
    each_column<T>(lanes, dy.extent(1),
                   [&](const auto& at, Index c) { at.store(&dy(n, c), scale * exp(at.load(&y(n, c)) - r.top) - low); });
    // Overwrites the element of the label, dy(n, l), because the target distribution has another value there. The lane
    // (thread of the row) that wrote the element above also overwrites it, so that no two lanes write one element.
    if (l % lanes.size == lanes.lane) dy(n, l) = mean * (exp(y(n, l) - r.top) / r.total - high);
  }
};

/// Computes the gradient of a softmax like SoftmaxBackward. For items with the label `ignore`, writes 0, even if their
/// rows have NaN.
template <class T, class B>
struct SoftmaxBackwardOfCounted {
  SoftmaxBackward<T, B> of;
  View<const Index, 1, B> label;
  Index ignore;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (label(n) == ignore) return zero_columns(lanes, of.dz.data() + n * of.dz.extent(1), of.dz.extent(1));
    of(lanes, n);
  }
};

}  // namespace functor

}  // namespace gatefold
