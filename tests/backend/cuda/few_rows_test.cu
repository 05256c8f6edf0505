// The product for few rows: its ring of tiles. The product itself is in product_test.cu.
#include "gatefold/backend/cuda/few_rows.cuh"

#include <doctest/doctest.h>

using namespace gatefold::device;

namespace {

template <class T, int Matrices>
void check() {
  CHECK(sizeof(Ring<T, Matrices>) <= 48 * 1024);  // what a block may have without asking for more
  CHECK(Ring<T, Matrices>::kStages >= 2);         // one is read while another comes
  CHECK(sizeof(Bfloat16[Strip::depth][Strip::columns]) <= sizeof(T[Strip::depth][Strip::columns]));
}

}  // namespace

TEST_CASE("rings have room for two tiles and fit a block") {
  check<float, 1>();
  check<float, 2>();
  check<double, 1>();
  check<double, 2>();
}

TEST_CASE("every thread has one four of a, and fours of b in whole rows") {
  CHECK(Strip::threads == Strip::rows * Strip::depth / 4);
  CHECK(Strip::threads % (Strip::columns / 4) == 0);
  CHECK(Strip::columns == 32);  // a lane each
}
