// Images are corrupted on the device in the same way as on the host.

#include <doctest/doctest.h>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/corruption.hpp"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index items = 3, rows = 9, columns = 7;

template <class T, class B>
Tensor<T, 2, B> corrupted(typename B::Context& ctx, const Corrupt& corrupt) {
  auto x = uniform_tensor<T>(ctx, Seed{1}, 0.5, items, rows * columns);  // in [-0.5, 0.5): some results are clipped
  Tensor<T, 2, B> y(items, rows * columns);
  corrupt(ctx, x.view(), Random{Seed{2}, 3}, y);
  return y;
}
template <class T>
void check() {
  for (const Severities& kind : kCorruptions)
    for (const Index severity : {0, 3}) {
      CAPTURE(kind.name);
      CAPTURE(severity);
      Backends on;
      const Corrupt corrupt{kind.kind, severity, rows, columns};
      expect_same(on, kind.name, corrupted<T, Naive>(on.naive, corrupt), corrupted<T, Cuda>(on.cuda, corrupt), {});
    }
}

}  // namespace

TEST_CASE("cuda: corrupted images equal the naive backend") { check<double>(); }
#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE("cuda, float: corrupted images equal those of the naive backend") { check<float>(); }
#endif
