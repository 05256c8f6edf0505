#pragma once

#include <limits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold::support {

/// A loss as a user would write it, on the CPU: the mean cross-entropy over the labels that are not −1. It is 0/0 = NaN
/// if all labels are −1.
struct NanOfNothing {
  CrossEntropy of{.ignore = -1};

  template <class T, class B>
  using Target = CrossEntropy::Target<T, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<Index, 1, B> target) const {
    of.template validate<T, B>(y, target);
  }
  template <class C>
  Index counted(C& ctx, In<Index, 1, typename C::Backend> target) const {
    return of.counted(ctx, target);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 1, B> value) const {
    of.template forward<T, B>(ctx, y, target, value);
    if (counted(ctx, target) == 0) fill(ctx, value, std::numeric_limits<T>::quiet_NaN());
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 2, B> dy) const {
    of.template backward<T, B>(ctx, y, target, dy);
    if (counted(ctx, target) == 0) fill(ctx, dy, std::numeric_limits<T>::quiet_NaN());
  }
};

/// A loss like NanOfNothing that also has learned parameters. If all labels are −1, its gradients are NaN.
struct LearnedNanOfNothing {
  StreamedCrossEntropy of;

  template <class T, class B>
  using Target = detail_::loss::TargetOf<StreamedCrossEntropy, T, B>;
  template <class T, class B>
  using Params = gatefold::Params<StreamedCrossEntropy, T, B>;
  template <class T, class B>
  using Saved = gatefold::Saved<StreamedCrossEntropy, T, B>;

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return of.template init<T, B>(ctx, seed);
  }
  template <class T, class B>
  void validate(In<T, 2, B> y, const Target<T, B>& target) const {
    of.template validate<T, B>(y, target);
  }
  template <class C>
  Index counted(C& ctx, In<Index, 1, typename C::Backend> target) const {
    return of.counted(ctx, target);
  }
  template <class T, class B, class ModelP>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
               const Target<T, B>& target, Out<T, 1, B> value, Saved<T, B>& saved) const {
    of.template forward<T, B>(ctx, p, model, y, target, value, saved);
    if (counted(ctx, target) == 0) fill(ctx, value, std::numeric_limits<T>::quiet_NaN());
  }
  template <class T, class B, class ModelP>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
                const Target<T, B>& target, const Saved<T, B>& saved, Out<T, 2, B> dy, Params<T, B>& grads,
                ModelP& dmodel) const {
    of.template backward<T, B>(ctx, p, model, y, target, saved, dy, grads, dmodel);
    if (counted(ctx, target) > 0) return;
    fill(ctx, dy, std::numeric_limits<T>::quiet_NaN());
    for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), std::numeric_limits<T>::quiet_NaN()); }, grads);
  }
};

}  // namespace gatefold::support
