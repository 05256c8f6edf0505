// Tensor maps: which matrices the driver accepts.
#include "gatefold/backend/cuda/tensor_map.cuh"

#include <doctest/doctest.h>

#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;

TEST_CASE("cuda: tensor_map: accepts rows of whole units only") {
  Cuda::Context ctx;
  test::DeviceArray<Bfloat16> values(ctx, std::vector<Bfloat16>(4 * 24));
  CHECK_NOTHROW(detail_::device::tensor_map(values.data(), 24, 24, 4, 1, 96));
  CHECK_NOTHROW(detail_::device::tensor_map(values.data(), 24, 24, 2, 2, 48));
  CHECK_THROWS_AS(detail_::device::tensor_map(values.data(), 20, 20, 4, 1, 80), DeviceError);  // rows of 40 bytes
  CHECK_THROWS_AS(detail_::device::tensor_map(values.data() + 1, 24, 24, 3, 1, 72),
                  DeviceError);  // the address is not aligned to a unit
}
