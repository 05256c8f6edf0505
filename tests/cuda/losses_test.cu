// Losses with label smoothing, class probabilities and several labels are the same on the device as on the host.

#include <doctest/doctest.h>

#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index items = 9, classes = 37;  // more classes than a warp has lanes

/// The value [1] and the gradient [N, C] of a loss.
template <class T, class B>
struct Result {
  Tensor<T, 1, B> value;
  Tensor<T, 2, B> dy;
};
template <class T, class B, class LossT, class TargetT>
Result<T, B> result_of(typename B::Context& ctx, const LossT& loss, const TargetT& target) {
  Result<T, B> result{Tensor<T, 1, B>(1), Tensor<T, 2, B>(items, classes)};
  const auto y = uniform_tensor<T>(ctx, Seed{1}, 4, items, classes);
  loss.template forward<T, B>(ctx, y, target, result.value);
  loss.template backward<T, B>(ctx, y, target, result.dy);
  return result;
}
template <class T, class Device, class LossT, class TargetT>
void check_loss(const char* name, const LossT& loss, const TargetT& target) {
  Backends on;
  const auto expected = result_of<T, Naive>(on.naive, loss, target);
  const auto actual = result_of<T, Cuda>(on.cuda, loss, on_cuda<Device>(on, target));
  CAPTURE(name);
  expect_same(on, "value", expected.value, actual.value, {});
  expect_same(on, "dy", expected.dy, actual.dy, {});
}
template <class T>
void check() {
  Tensor<Index, 1, Naive> label(items);
  for (Index n = 0; n < items; ++n) label(n) = n % 3 == 1 ? -1 : n * 11 % classes;
  Tensor<T, 2, Naive> between(items, classes);
  for (Index i = 0; i < between.size(); ++i) between.data()[i] = static_cast<T>(i * 7 % 5) / 4;
  check_loss<T, Tensor<Index, 1, Cuda>>("CrossEntropy", CrossEntropy{.ignore = -1, .label_smoothing = 0.1}, label);
  check_loss<T, Tensor<T, 2, Cuda>>("SoftCrossEntropy", SoftCrossEntropy{}, between);
  check_loss<T, Tensor<T, 2, Cuda>>("SigmoidCrossEntropy", SigmoidCrossEntropy{}, between);
}

}  // namespace

TEST_CASE("cuda: losses equal the naive backend") { check<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda, float: losses equal the naive backend") { check<float>(); }
#endif
