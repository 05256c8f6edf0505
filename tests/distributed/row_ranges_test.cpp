#include "gatefold/distributed/row_ranges.hpp"

#include <doctest/doctest.h>

#include "gatefold/distributed/memory.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

TEST_CASE("rows: rows follow the first extent, empty copies are valid") {
  Tensor<double, 3, Cpu> all(4, 2, 3), part;
  for (Index i = 0; i < all.size(); ++i) all.data()[i] = static_cast<double>(i);
  CHECK(dist::rows::width(all) == 6);
  dist::rows::resize(part, all, 2);
  CHECK(part.extent(0) == 2);
  CHECK(part.extent(1) == 2);
  CHECK(part.extent(2) == 3);
  dist::rows::copy(dist::HostMemory{}, std::as_const(all).data(), {1, 2}, 6, part.data());
  for (Index i = 0; i < part.size(); ++i) CHECK(part.data()[i] == static_cast<double>(6 + i));
  CHECK(dist::rows::width(Tensor<double, 1, Cpu>(5)) == 1);
  double* volatile nowhere = nullptr;  // volatile: compilers warn about copies of no values to a known null
  dist::rows::copy<dist::HostMemory, double>({}, nowhere, {0, 0}, 6, nowhere);
}
