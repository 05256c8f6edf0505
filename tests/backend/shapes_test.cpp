#include "gatefold/backend/shapes.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

TEST_CASE("Shapes: tensors have extents of any size without memory") {
  Shapes::Context ctx;
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1.0, Index(1) << 20, Index(1) << 36);
  CHECK(x.extent(0) == Index(1) << 20);
  CHECK(x.size() == Index(1) << 56);
  CHECK(x.data() == nullptr);
  Tensor<double, 2, Shapes> moved = constant_tensor<double>(ctx, 1, 3, 4);
  moved.resize(5, 6);
  CHECK(moved.size() == 30);
  const auto mark = ctx.mark();
  CHECK(ctx.scratch<float>(1, 7).extent(1) == 7);
}
