#pragma once

#include <limits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/loss/cross_entropy.hpp"

namespace gatefold::support {

/// A loss of one's own on the CPU: the mean cross-entropy of labels that are not −1, which is 0/0 where there is none.
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

}  // namespace gatefold::support
