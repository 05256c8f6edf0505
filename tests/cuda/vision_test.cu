// A vision transformer and attacks on images give the same results on the device as on the host.

#include <doctest/doctest.h>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/pgd.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

TEST_CASE("cuda: vision transformer (reference form) matches the naive backend") {
  const VisionSizes sizes{.side = 6,
                          .channels = 2,
                          .patch = 3,
                          .model_dim = 12,
                          .heads = 2,
                          .depth = 4,
                          .classes = 5,
                          .mean = 0.1,
                          .deviation = 0.4};
  const Linear expert{.model_dim = 12};
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, expert};
  Backends on;
  expect_same_layer<double>(
      on, vmoe_every_2<vision::Reference>(sizes, update::Robust{.p = 0.5, .k = 2}, mixture, expert), {.items = 3});
}

namespace {

template <class T>
struct Steeper {
  T slope;
  const T *c, *y;
  T* dy;
  GATEFOLD_HD void operator()(Index i) const { dy[i] = c[i] + slope * y[i]; }
};
template <class T, class B>
Tensor<T, 2, B> attacked(typename B::Context& ctx, const Noise& start) {
  constexpr Index items = 3, pixels = 11;
  const auto x = uniform_tensor<T>(ctx, Seed{1}, 0.5, items, pixels),
             c = uniform_tensor<T>(ctx, Seed{2}, 1, items, pixels);
  Tensor<T, 2, B> y(items, pixels);
  const Pgd attack{.epsilon = 0.3, .step = 0.1, .steps = 4, .low = -0.4, .high = 0.6};
  attack(
      ctx,
      [&](View<const T, 2, B> at, View<T, 2, B> d) {
        B::for_each(ctx, at.size(), Steeper<T>{T(-1), c.data(), at.data(), d.data()});
      },
      x.view(), start, y);
  return y;
}

}  // namespace

TEST_CASE("cuda: attacked images equal the naive backend") {
  Backends on;
  for (const Noise& start : {Noise{}, Noise{Random{Seed{3}, 1}}})
    expect_same(on, "y", attacked<double, Naive>(on.naive, start), attacked<double, Cuda>(on.cuda, start), {});
}
