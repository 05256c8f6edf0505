#include "gatefold/update/inner_product.hpp"

#include <doctest/doctest.h>

#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("InnerProduct, RowInnerProduct: sums over everything, and over each row") {
  Cpu::Context ctx(2);
  const auto a = matrix<double>({{1, 2, 3}, {-1, 0, 2}}), b = matrix<double>({{2, 0.5, 1}, {4, 7, -3}});
  double total = 100;  // reduce adds
  Cpu::reduce<double>(ctx, a.size(), functor::InnerProduct<double>{a.data(), b.data()}, &total);
  CHECK(total == 100 + 6 - 10);
  auto rows = constant_tensor<double>(ctx, quiet_nan, 2);
  Cpu::for_rows(ctx, 2, functor::RowInnerProduct<double, Cpu>{a, b, rows});
  CHECK(values(rows) == std::vector<double>{6, -10});
  const auto large = matrix<float>({{1e20, -1e20}});  // whose squares no float holds
  Cpu::for_rows(ctx, 1, functor::RowInnerProduct<float, Cpu, double>{large, large, rows});
  CHECK(rows(0) == rounded(2.0 * 1e20f * 1e20f));
  total = 0;
  Cpu::reduce<double>(ctx, 2, functor::InnerProduct<float, double>{large.data(), large.data()}, &total);
  CHECK(total == rounded(2.0 * 1e20f * 1e20f));
}
