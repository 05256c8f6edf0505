// One tile of a bfloat16 product: its shapes, and what it does at rows and columns that do not exist.
#include "gatefold/backend/cuda/bf16_tile.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

/// c = 2 (first − second) for two matrices; −1 at a wrong place.
struct Difference {
  Index expert, first_row;
  template <class A>
  __device__ float operator()(const A&, Index e, Index s, Index j, float v, float w) const {
    return e == expert && s >= first_row && j >= 0 ? 2 * (v - w) : -1.f;
  }
};

template <class Shape, class C>
static __global__ void __launch_bounds__(Shape::threads)
    one_tile(Bf16Matrix a, Bf16Matrix b, Bf16Matrix other, Bf16TilePlace at, Index depth, C* c, Index stride) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ Bf16TilePlace place;
  if (threadIdx.x == 0) place = at;
  __syncthreads();
  const Bf16Matrix both[2] = {b, other};
  Bf16Tile<Shape, Layout::along_depth, Layout::along_lines, 2> tile;
  tile.template sum<false, false>(ring, place, a, both, depth);
  tile.finish(ring, place, c, stride, Difference{at.expert, at.first});
}

/// Checks the last tile of a product, which extends past the last row and the last column. The results are float, or
/// bfloat16 in rows of whole units.
template <class Shape, class C>
void check() {
  Cuda::Context ctx;
  const Index depth = 72, rows = Shape::rows + 5, columns = Shape::columns / 2 + 11, stride = bf16_stride(columns);
  const auto numbers = [](Index n, Index shift) {
    std::vector<Bfloat16> v;
    for (Index i = 0; i < n; ++i) v.push_back(Bfloat16::from(static_cast<float>((i * 7 + shift) % 5 - 2)));
    return v;
  };
  const auto a = numbers(rows * depth, 1), b = numbers(depth * stride, 2), other = numbers(depth * stride, 3);
  test::DeviceArray<Bfloat16> on_a(ctx, a), on_b(ctx, b), on_other(ctx, other);
  const Index width = std::is_same_v<C, float> ? columns : stride;
  const C untouched = C(Bfloat16::from(-77));
  test::DeviceArray<C> c(ctx, std::vector<C>(static_cast<std::size_t>(rows * width), untouched));
  const Bf16TilePlace place{3, 100, rows, columns, Shape::rows, Shape::columns / 2};
  using Tile = Bf16Tile<Shape, Layout::along_depth, Layout::along_lines, 2>;
  REQUIRE(cudaFuncSetAttribute(one_tile<Shape, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::bytes) ==
          cudaSuccess);
  one_tile<Shape, C><<<1, Shape::threads, Tile::bytes, ctx.stream()>>>(
      {on_a.data(), depth}, {on_b.data(), stride}, {on_other.data(), stride}, place, depth, c.data(), width);
  expect_launched("one_tile");
  const auto got = c.values();
  for (Index r = 0; r < rows; ++r)
    for (Index j = 0; j < width; ++j) {
      float expected = -77;
      if (r >= place.row && j >= place.column) {
        expected = 0;
        for (Index k = 0; k < depth && j < columns; ++k)
          expected += 2 * float(a[static_cast<std::size_t>(r * depth + k)]) *
                      (float(b[static_cast<std::size_t>(k * stride + j)]) -
                       float(other[static_cast<std::size_t>(k * stride + j)]));
        // The sums have up to 72 products of numbers up to 2: exact in float, rounded in bfloat16
        expected = std::is_same_v<C, float> ? expected : float(Bfloat16::from(expected));
      }
      CHECK(float(got[static_cast<std::size_t>(r * width + j)]) == expected);
    }
}

}  // namespace

TEST_CASE("cuda: bfloat16 tiles: float and bfloat16 operands equal loops") {
  check<Bf16Skinny, float>();
  check<Bf16Skinny, Bfloat16>();
  check<Bf16SomeRows, float>();
  check<Bf16ManyRows, Bfloat16>();
}

TEST_CASE("bfloat16 tiles: fit shared memory from compute capability 8.6") {
  const auto bytes = []<class Shape>(Shape) {
    return Bf16Tile<Shape, Layout::along_depth, Layout::along_lines, 1>::bytes;
  };
  // A block can have 99 KiB of shared memory, of which the kernel needs up to 1 KiB for other data.
  CHECK(bytes(Bf16ManyRows{}) <= 98 * 1024);
  CHECK(bytes(Bf16SomeRows{}) <= 98 * 1024);
  CHECK(bytes(Bf16Skinny{}) <= 98 * 1024);
  CHECK(bytes(Bf16SkinnyNarrow{}) <= 98 * 1024);
  CHECK(bytes(Bf16SkinnyNarrowest{}) <= 98 * 1024);
}
