// The ring of tiles of the product for few rows. The product itself is tested in product_test.cu.
#include "gatefold/backend/cuda/skinny.cuh"

#include <doctest/doctest.h>

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

template <class Strip, class T, int Matrices>
void check_ring() {
  using R = Ring<Strip, T, Matrices>;
  CHECK(sizeof(R) <= 48 * 1024);  // the default limit of shared memory of a block
  CHECK(R::stages >= 2);          // one stage is read while another is loaded
  CHECK(sizeof(Bfloat16[Strip::depth][Strip::columns]) <= sizeof(T[Strip::depth][Strip::columns]));
}

template <class Strip>
void check_strip() {
  check_ring<Strip, float, 1>();
  check_ring<Strip, float, 2>();
  check_ring<Strip, double, 1>();
  check_ring<Strip, double, 2>();
  CHECK(Strip::threads % Strip::columns == 0);        // each thread has one column
  CHECK(Strip::rows % Strip::row_step == 0);          // all threads have equally many rows
  CHECK(Strip::threads % (Strip::depth / 4) == 0);    // with four values of a per thread, the threads load whole rows
  CHECK(Strip::threads % (Strip::columns / 4) == 0);  // with four values of b per thread, the threads load whole rows
  CHECK(Strip::depth % 4 == 0);
}

}  // namespace

TEST_CASE("strips: the ring fits a block, threads share work evenly") {
  check_strip<WideStrip>();
  check_strip<NarrowStrip>();
}
