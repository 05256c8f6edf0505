// The CUDA backends: copies to the device and back, and random numbers.
#include "gatefold/backend/cuda/cuda.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/transfer.hpp"
#include "support/device_array.cuh"
#include "support/naive_backend.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

template <class B>
struct Pair {
  Tensor<double, 2, B> weight;
  std::vector<Tensor<Index, 1, B>> counts;
  GATEFOLD_PACK(weight, counts)
};

}  // namespace

TEST_CASE("cuda: Cuda and CudaBf16 satisfy the Backend concept") {
  static_assert(Backend<Cuda> && Backend<CudaBf16>);
  CHECK(!Cuda::is_host);
  CHECK(!CudaBf16::is_host);
}

TEST_CASE("cuda: views of Cuda and CudaBf16 convert, not host views") {
  Cuda::Context ctx;
  const Tensor<float, 2, Cuda> x(2, 3);
  Tensor<float, 2, CudaBf16> y(2, 3);
  CHECK(View<const float, 2, CudaBf16>(x).data() == x.data());
  CHECK(View<const float, 2, CudaBf16>(x.view()).extent(1) == 3);
  CHECK(View<float, 2, Cuda>(y).data() == y.data());
  CHECK(View<const float, 2, Cuda>(y.view()).data() == y.data());
  static_assert(!std::is_convertible_v<View<const float, 2, Cuda>, View<float, 2, CudaBf16>>);
  static_assert(!std::is_convertible_v<View<float, 2, Naive>, View<float, 2, Cuda>>);
  static_assert(!std::is_convertible_v<View<float, 2, Cuda>, View<float, 2, Naive>>);
  static_assert(!std::is_convertible_v<Tensor<float, 2, Cuda>&, View<float, 2, Naive>>);
}

#ifndef NDEBUG
TEST_CASE("cuda: with assertions, released scratch is overwritten") {
  Cuda::Context ctx;
  const Index n = 1000;
  const Index* given_back = nullptr;
  {
    const auto mark = ctx.mark();
    const auto x = ctx.scratch<Index>(n);
    fill(ctx, x, 1);
    given_back = x.data();
  }
  std::vector<Index> found(n);
  Cuda::to_host(ctx, n, given_back, found.data());
  CHECK(found == std::vector<Index>(n, -1));
}
#endif

TEST_CASE("cuda: transfer: copies views and packs in both directions") {
  Cuda::Context ctx;
  Pair<Naive> there, back;
  there.weight.resize(2, 3);
  for (Index i = 0; i < 6; ++i) there.weight(i / 3, i % 3) = 0.5 * static_cast<double>(i);
  there.counts.resize(2);
  there.counts[1].resize(4);
  for (Index i = 0; i < 4; ++i) there.counts[1](i) = 10 + i;

  Pair<Cuda> on_device;
  transfer(ctx, there, on_device);
  REQUIRE(on_device.counts.size() == 2);
  CHECK(on_device.weight.extent(1) == 3);
  add_scaled(ctx, 2, on_device.weight.view(), on_device.weight.view());
  transfer(ctx, on_device, back);
  REQUIRE(back.counts.size() == 2);
  CHECK(back.counts[0].size() == 0);
  for (Index i = 0; i < 6; ++i) CHECK(back.weight(i / 3, i % 3) == 1.5 * static_cast<double>(i));
  for (Index i = 0; i < 4; ++i) CHECK(back.counts[1](i) == 10 + i);

  Tensor<double, 2, Naive> other(3, 2);
  CHECK_THROWS_WITH_AS(transfer(ctx, std::as_const(on_device.weight).view(), other.view()),
                       "transfer: to.extent(0): expected 2, got 3", ArgumentError);
}

TEST_CASE("cuda: random numbers equal those on other backends") {
  Cuda::Context ctx;
  Naive::Context naive;
  const auto x = uniform_tensor<double>(ctx, Seed{3}, 2, 5, 7);
  const auto expected = uniform_tensor<double>(naive, Seed{3}, 2, 5, 7);
  Tensor<double, 2, Naive> got(5, 7);
  transfer(ctx, x.view(), got.view());
  CHECK(std::equal(got.data(), got.data() + 35, expected.data()));
}
