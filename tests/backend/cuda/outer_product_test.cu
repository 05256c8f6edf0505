// The gradients of weights: bit for bit the documented chains of fused multiply-adds, added or stored.
#include "gatefold/backend/cuda/outer_product.cuh"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

template <class T>
void check_both_ways(Cuda::Context& ctx, const ProductCase& c) {
  CHECK(difference_of_gradients<T>(ctx, c) == "");
  CHECK(difference_of_gradients<T>(ctx, c, 0, false) == "");
}
/// The device may skip the rounding of weight · dc before the addition, so these sums are compared with a tolerance.
template <class T>
void check_scattered(Cuda::Context& ctx, const ProductCase& c) {
  CHECK(difference_of_gradients<T>(ctx, c, 1000 * std::numeric_limits<T>::epsilon(), true, true) == "");
  CHECK(difference_of_gradients<T>(ctx, c, 1000 * std::numeric_limits<T>::epsilon(), false, true) == "");
}

template <class T>
void check_gradients() {
  Cuda::Context ctx;
  struct Size {
    Index depth, columns, a_skip = 0, dc_skip = 0;
  };
  for (const Size& size : {Size{4, 4}, Size{64, 132}, Size{1, 1}, Size{5, 3}, Size{65, 31}, Size{33, 64},
                           Size{8, 12, 1}, Size{8, 12, 0, 1}})
    for (const bool gather : {false, true}) {
      const ProductCase c{
          {0, 1, 15, 17, 0, 33, 65, 0}, size.depth, size.columns, false, gather, size.a_skip, size.dc_skip};
      CAPTURE(c);
      check_both_ways<T>(ctx, c);
      check_scattered<T>(ctx, c);
    }
}

/// Checks products with tiles of the largest shape.
template <class T>
void check_many_tiles() {
  Cuda::Context ctx;
  using Shape = detail_::device::ManyTiles<T, 1>;
  const Index at_once = detail_::device::blocks_at_once<Shape>(ctx.multiprocessors());
  const ProductCase c{.counts = {20, 0, 7}, .depth = 132, .columns = 128 * (at_once / 4 + 1) - 4, .gather = true};
  CAPTURE(c);
  check_both_ways<T>(ctx, c);
  check_scattered<T>(ctx, c);
}

/// Checks more experts than a warp has lanes, every fifth of them empty, with slots of other experts before and behind.
template <class T>
void check_many_experts() {
  Cuda::Context ctx;
  for (const Index columns : {4, 5}) {
    ProductCase c{.counts = {}, .depth = 4, .columns = columns, .gather = true, .first = 7, .more = 50};
    for (Index e = 0; e < 70; ++e) c.counts.push_back(e % 5 == 3 ? 0 : 1 + e * 7 % 19);
    CAPTURE(c);
    check_both_ways<T>(ctx, c);
    check_scattered<T>(ctx, c);
  }
}

template <class T>
void check_nothing() {
  Cuda::Context ctx;
  const auto check = [&](const ProductCase& c) {
    CAPTURE(c);
    check_both_ways<T>(ctx, c);
  };
  check({.counts = {}, .depth = 4, .columns = 4});
  check({.counts = {0, 0, 0}, .depth = 4, .columns = 4});
  check({.counts = {0}, .depth = 4, .columns = 4, .more = 0});
  check({.counts = {3, 2}, .depth = 4, .columns = 0});
  for (const Index columns : {4, 5}) check({.counts = {3, 2}, .depth = 0, .columns = columns});
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: gradients are added to previous values, or stored", T, double, float) {
  check_gradients<T>();
}
TEST_CASE_TEMPLATE("cuda: gradients: are correct with more tiles than resident blocks", T, double, float) {
  check_many_tiles<T>();
}
TEST_CASE_TEMPLATE("cuda: gradients: equal loops for 70 experts", T, double, float) { check_many_experts<T>(); }
TEST_CASE_TEMPLATE("cuda: gradients without slots are kept, or stored as 0", T, double, float) { check_nothing<T>(); }
