// The shapes of the tiled product: every sum of a block belongs to one thread, and the block fits a device.
#include "gatefold/backend/cuda/tile.cuh"

#include <doctest/doctest.h>

#include "gatefold/backend/cuda/product.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

template <class T, int Matrices, class Shape>
void check() {
  CHECK(Shape::warp_rows == Shape::lane_rows * Shape::row_parts * Shape::patch);
  CHECK(Shape::warp_columns == Shape::lane_columns * Shape::column_parts * Shape::patch);
  CHECK(Shape::lane_rows * Shape::lane_columns == 32);
  CHECK(Shape::threads == 32 * Shape::warps_down * Shape::warps_across);
  CHECK(Shape::threads * Shape::row_parts * Shape::column_parts * 16 == Shape::rows * Shape::columns);
  CHECK(Shape::threads <= 1024);
  // A block may have 48 KiB of shared memory by default.
  constexpr std::size_t shared = sizeof(Staging<Shape, Matrices, T>);
  CHECK(shared <= 48 * 1024);
}

}  // namespace

TEST_CASE("TileShape: has the extents of its parameters") {
  using Shape = TileShape<64, 32, 8, 2, 1, true, 3>;
  CHECK(Shape::rows == 64);
  CHECK(Shape::columns == 32);
  CHECK(Shape::depth == 8);
  CHECK(Shape::blocks == 3);
  CHECK(Shape::whole);
  CHECK(Shape::warp_rows == 64);     // 8 lanes, 2 patches of 4
  CHECK(Shape::warp_columns == 16);  // 4 lanes, 1 patch of 4
  CHECK(Shape::threads == 64);       // two warps side by side
}

TEST_CASE("TileShape: every used shape fits block and device") {
  check<float, 1, ManyTiles<float, 1>>();
  check<float, 2, ManyTiles<float, 2>>();
  check<double, 1, ManyTiles<double, 1>>();
  check<double, 2, ManyTiles<double, 2>>();
  check<float, 1, SomeTiles<float, 1>>();
  check<float, 2, SomeTiles<float, 2>>();
  check<double, 1, SomeTiles<double, 1>>();
  check<double, 2, SomeTiles<double, 2>>();
  check<float, 1, FewTiles<float, 1>>();
  check<float, 2, FewTiles<float, 2>>();
  check<double, 1, FewTiles<double, 1>>();
  check<double, 2, FewTiles<double, 2>>();
  check<float, 1, QuantisedTiles>();
  check<float, 2, QuantisedTiles>();
}

TEST_CASE("TileShape: larger shapes need operands aligned to four values") {
  CHECK(ManyTiles<float, 1>::whole);
  CHECK(SomeTiles<double, 2>::whole);
  CHECK(!FewTiles<float, 1>::whole);
  CHECK(FewTiles<float, 1>::rows < SomeTiles<float, 1>::rows);
  CHECK(SomeTiles<float, 1>::rows < ManyTiles<float, 1>::rows);
}

TEST_CASE("fills_device: needs 9/10 of resident blocks, small shapes half") {
  using Large = TileShape<128, 128, 16, 2, 2, true, 2>;
  CHECK(blocks_at_once<Large>(10) == 20);
  CHECK(!fills_device<Large>(17, 10));
  CHECK(fills_device<Large>(18, 10));
  using Small = TileShape<64, 128, 8, 2, 2, true, 4>;
  CHECK(blocks_at_once<Small>(10) == 40);
  CHECK(!fills_device<Small>(19, 10));
  CHECK(fills_device<Small>(20, 10));
}
