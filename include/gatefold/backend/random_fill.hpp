#pragma once

#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/philox.hpp"

/// Functions that fill tensors with random numbers. Element i of a tensor gets number i of the random stream of a seed,
/// on every backend and with any number of threads.
namespace gatefold {

namespace functor {

template <class T>
struct Uniform {
  Seed seed;
  T low, width;
  T* x;
  GATEFOLD_HD void operator()(Index i) const {
    x[i] = low + width * uniform<T>(seed, 0, static_cast<std::uint64_t>(i));
  }
};
template <class T>
struct Normal {
  Seed seed;
  T scale;
  T* x;
  GATEFOLD_HD void operator()(Index i) const { x[i] = scale * normal<T>(seed, 0, static_cast<std::uint64_t>(i)); }
};

}  // namespace functor

/// Fills x with uniformly distributed random numbers from [low, high). Because of rounding, `high` itself can also
/// occur.
/// @param x  a Tensor or Table
template <class C, class X>
void fill_uniform(C& ctx, Seed seed, double low, double high, X& x) {
  using T = std::remove_cvref_t<decltype(*x.data())>;
  C::Backend::for_each(ctx, x.size(), functor::Uniform<T>{seed, T(low), T(high - low), x.data()});
}
/// Fills x with random numbers from the normal distribution N(0, scale²).
template <class C, class X>
void fill_normal(C& ctx, Seed seed, double scale, X& x) {
  using T = std::remove_cvref_t<decltype(*x.data())>;
  C::Backend::for_each(ctx, x.size(), functor::Normal<T>{seed, T(scale), x.data()});
}

/// Returns a new tensor of the given extents with uniformly distributed numbers from [-bound, bound).
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> uniform_tensor(C& ctx, Seed seed, double bound, Extent... extents) {
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> x(extents...);
  fill_uniform(ctx, seed, -bound, bound, x);
  return x;
}
/// Returns a new tensor of the given extents, with every element equal to `value`.
template <class T, class C, class... Extent>
Tensor<T, sizeof...(Extent), typename C::Backend> constant_tensor(C& ctx, double value, Extent... extents) {
  const auto here = ctx.here();
  Tensor<T, sizeof...(Extent), typename C::Backend> x(extents...);
  fill(ctx, x.view(), static_cast<T>(value));
  return x;
}

}  // namespace gatefold
