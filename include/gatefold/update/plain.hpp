#pragma once

#include "gatefold/update/update.hpp"

namespace gatefold::update {

/// An update rule that is the ordinary residual connection. A layer with input x and branch output u(x) returns y. In
/// the view of paper 001, this is one step of gradient descent.
///
///     y = x + u(x)                                                                                      (1)
///
/// Source: He et al. 2015, arXiv:1512.03385; paper 001, eq. (8).
/// @cost N·D additions
struct Plain {
  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    f(x, y, 0, functor::AddScaled<T>{T(1), x.data(), y.data()});
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    add(ctx, dy, dx);
    df(x, dy, dx, 0);
  }
};

}  // namespace gatefold::update
