#include "gatefold/loss/loss.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/loss/mean_squared_error.hpp"

using namespace gatefold;

namespace {

template <class T>
struct Counting {
  T operator()(Index i) const { return static_cast<T>(i); }
};

template <class T>
T mean(Index terms, Index count) {
  Cpu::Context ctx(2);
  Tensor<T, 1, Cpu> value(1);
  value(0) = 77;  // overwritten
  mean_loss<T, Cpu>(ctx, terms, {count}, Counting<T>{}, value);
  return value(0);
}

}  // namespace

TEST_CASE_TEMPLATE("mean_loss: sums the terms and divides by the count", T, float, double) {
  CHECK(mean<T>(5, 5) == 2);
  CHECK(mean<T>(5, 2) == 5);
  CHECK(mean<T>(1, 1) == 0);
  CHECK(mean<T>(4097, 4096) == T(4096.0 * 4097.0 / 2 / 4096));
}

TEST_CASE_TEMPLATE("mean_loss: equal terms give that term, for any count", T, float, double) {
  Cpu::Context ctx(2);
  Tensor<T, 1, Cpu> value(1);
  const T term = static_cast<T>(std::log(10.0));
  for (const Index terms : {1, 1000, 4096, 100000}) {
    const std::vector<T> all(static_cast<std::size_t>(terms), term);
    mean_loss<T, Cpu>(ctx, terms, {terms}, functor::Term<T>{all.data()}, value);
    // Each term of a block and each block adds at most half an ulp of the sum in double.
    CHECK(std::abs(static_cast<double>(value(0) - term)) <=
          std::max<double>(std::numeric_limits<T>::epsilon(), 4200 * 0x1p-53) * static_cast<double>(term));
  }
}

TEST_CASE_TEMPLATE("share_of_mean: divides by all items, or the counted ones", T, float, double) {
  Cpu::Context ctx(1);
  const auto mark = ctx.mark();
  const std::vector<Index> label{3, -1, 0, -1, 7};
  const auto share = [&](Index ignore) {
    return static_cast<double>(detail_::loss::share_of_mean<Cpu>(ctx, label, ignore).template of<T>());
  };
  CHECK(share(ignore_none) == static_cast<double>(T(1) / 5));
  CHECK(share(-1) == static_cast<double>(T(1) / 3));
  CHECK(share(2) == static_cast<double>(T(1) / 5));
  const std::vector<Index> none(4, -1);
  CHECK((detail_::loss::share_of_mean<Cpu>(ctx, none, -1).template of<T>()) == 1);  // a share of a sum that is 0
}

TEST_CASE_TEMPLATE("mean_loss: no items give 0", T, float, double) {
  CHECK(mean<T>(0, 0) == 0);
  CHECK(mean<T>(0, 3) == 0);
}

TEST_CASE("loss: the value must be one number") {
  Cpu::Context ctx(1);
  Tensor<double, 1, Cpu> two(2), none(0);
  CHECK_THROWS_WITH_AS((mean_loss<double, Cpu>(ctx, 3, {3}, Counting<double>{}, two)),
                       "mean_loss: value: expected [1], got [2]", ArgumentError);
  CHECK_THROWS_AS((mean_loss<double, Cpu>(ctx, 3, {3}, Counting<double>{}, none)), ArgumentError);
}

TEST_CASE_TEMPLATE("loss: T and B are deduced from the outputs", T, float, double) {
  Cpu::Context ctx(1);
  const auto y = uniform_tensor<T>(ctx, Seed{1}, 1, 3, 2), target = uniform_tensor<T>(ctx, Seed{2}, 1, 3, 2);
  Tensor<T, 1, Cpu> value(1), of_views(1);
  Tensor<T, 2, Cpu> dy(3, 2);
  forward(MeanSquaredError{}, ctx, y, target, value);
  forward(MeanSquaredError{}, ctx, y.view(), target, of_views);
  backward(MeanSquaredError{}, ctx, y, target, dy);
  double mean = 0;
  for (Index n = 0; n < 3; ++n)
    for (Index d = 0; d < 2; ++d) {
      const double difference = double(y(n, d)) - double(target(n, d));
      mean += difference * difference / 6;
      CHECK(double(dy(n, d)) == doctest::Approx(difference / 3).epsilon(1e-6));
    }
  CHECK(double(value(0)) == doctest::Approx(mean).epsilon(1e-6));
  CHECK(of_views(0) == value(0));
}
