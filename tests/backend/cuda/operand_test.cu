// Operands: which of them can be read four numbers at a time, and what remains without the first rows.
#include "gatefold/backend/cuda/operand.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

template <class W>
bool aligned(Index skip, Index stride) {
  alignas(64) static W memory[8] = {};
  return operand<float>(Layout::along_lines, memory + skip, stride).aligned;
}

struct Skipped {
  Operand<float> plain, gathered;
  Index* found;
  __device__ void operator()(Index i) const {
    const Operand<float> rest = plain.skip(i), rest_gathered = gathered.skip(i);
    found[3 * i] = rest.data - plain.data;
    found[3 * i + 1] = *rest_gathered.rows;
    found[3 * i + 2] = rest_gathered.data - gathered.data;
  }
};

}  // namespace

TEST_CASE("Four: needs aligned base and rows") {
  CHECK(sizeof(Four<float>) == 16);
  CHECK(alignof(Four<float>) == 16);
  CHECK(sizeof(Four<double>) == 32);
  CHECK(alignof(Four<double>) == 16);  // the widest load of a device
  CHECK(alignof(Four<Bfloat16>) == 8);
  CHECK(aligned<float>(0, 8));
  CHECK(aligned<float>(4, 8));
  CHECK(!aligned<float>(1, 8));
  CHECK(!aligned<float>(2, 8));
  CHECK(!aligned<float>(0, 6));
  CHECK(aligned<double>(2, 8));
  CHECK(!aligned<double>(1, 8));
  CHECK(aligned<Bfloat16>(4, 4));
  CHECK(!aligned<Bfloat16>(2, 4));
}

TEST_CASE("operand: strides are in bytes") {
  CHECK(operand<double>(Layout::along_depth, static_cast<const double*>(nullptr), 5).stride == 40);
  CHECK(operand<float>(Layout::rounded, static_cast<const Bfloat16*>(nullptr), 5).stride == 10);
}

TEST_CASE("cuda: operand: skipping rows moves its base or row list") {
  Cuda::Context ctx;
  test::DeviceArray<float> values(ctx, std::vector<float>(12));
  test::DeviceArray<Index> rows(ctx, {2, 0, 1}), found(ctx, std::vector<Index>(9, -1));
  Cuda::for_each(ctx, 3,
                 Skipped{operand<float>(Layout::along_depth, values.data(), 4),
                         operand<float>(Layout::along_depth, values.data(), 4, rows.data()), found.data()});
  CHECK(found.values() == std::vector<Index>{0, 2, 0, 16, 0, 0, 32, 1, 0});
}
