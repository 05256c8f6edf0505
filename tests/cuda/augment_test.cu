// Batches are augmented on the device in the same way as on the host.

#include <doctest/doctest.h>

#include "gatefold/data/augment.hpp"
#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index items = 7, rows = 6, columns = 9, channels = 2, classes = 37;

template <class T, class B, class F>
Tensor<T, 2, B> changed(typename B::Context& ctx, const F& change) {
  const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, items, rows * columns * channels);
  Tensor<T, 2, B> y(items, rows * columns * channels);
  change(ctx, x, Random{Seed{2}, 3}, y);
  return y;
}
template <class T>
void check() {
  Backends on;
  const data::CropAndFlip crop{rows, columns, channels, 2, 0.5};
  expect_same(on, "CropAndFlip", changed<T, Naive>(on.naive, crop), changed<T, Cuda>(on.cuda, crop), {});
  const data::Mixup mixup{.alpha = 0.4};
  expect_same(on, "Mixup", changed<T, Naive>(on.naive, mixup), changed<T, Cuda>(on.cuda, mixup), {});

  Tensor<Index, 1, Naive> label(items);
  for (Index n = 0; n < items; ++n) label(n) = n * 11 % classes;
  Tensor<T, 2, Naive> expected(items, classes);
  Tensor<T, 2, Cuda> actual(items, classes);
  data::one_hot<T>(on.naive, label, expected, 0.1);
  data::one_hot<T>(on.cuda, on_cuda<Tensor<Index, 1, Cuda>>(on, label), actual, 0.1);
  expect_same(on, "one_hot", expected, actual, {});
}

}  // namespace

TEST_CASE("cuda: augmented batches equal the naive backend") { check<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda, float: augmented batches equal those of the naive backend") { check<float>(); }
#endif
