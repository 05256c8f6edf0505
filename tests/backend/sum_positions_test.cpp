#include "gatefold/backend/sum_positions.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE_TEMPLATE("SumPositions: sums positions in order and scales, backward adds", T, float, double) {
  Cpu::Context ctx(2);
  constexpr Index items = 5, length = 4;
  for (const Index dim : {1, 7, 16, 37})
    for (const Index count : {1, 3, 4})
      for (const T share : {T(1), 1 / T(3)}) {
        CAPTURE(dim);
        CAPTURE(count);
        const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, items, length * dim),
                   dtotal = uniform_tensor<T>(ctx, Seed{2}, 1, items, dim);
        auto total = constant_tensor<T>(ctx, -1, items, dim), dx = constant_tensor<T>(ctx, 2, items, length * dim);
        Cpu::for_rows(ctx, items, functor::SumPositions<T, Cpu>{count, share, x, total});
        Cpu::for_rows(ctx, items, functor::SumPositionsBackward<T, Cpu>{count, share, dtotal, dx});
        Index wrong = 0;
        for (Index n = 0; n < items; ++n)
          for (Index d = 0; d < dim; ++d) {
            T sum = x(n, d);
            for (Index l = 1; l < count; ++l) sum += x(n, l * dim + d);
            wrong += total(n, d) != sum * share;
            for (Index l = 0; l < length; ++l) {
              const double exact = 2 + double(share) * double(dtotal(n, d)), got = double(dx(n, l * dim + d));
              wrong += l < count ? !(std::abs(got - exact) <= 4 * double(std::numeric_limits<T>::epsilon())) : got != 2;
            }
          }
        CHECK(wrong == 0);
      }
}
