// Tests cuTensorMapEncodeTiled: how a program finds it, the arguments that it accepts and refuses, and its result.
#include "cuda_emulator/tensor_map.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/encoding.hpp"
#include "cuda_emulator/evaluate.hpp"

namespace gatefold::cuda_emulator {
namespace {

constexpr cuuint64_t one = 1;

TEST_CASE("cuTensorMapEncodeTiled: is found by name and version") {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult status{};
  const char* name = "cuTensorMapEncodeTiled";
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &status) == cudaSuccess);
  CHECK(function != nullptr);
  CHECK(status == cudaDriverEntryPointSuccess);
  CHECK(calls()["cudaGetDriverEntryPointByVersion"] == 1);

  void* same = nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  REQUIRE(cudaGetDriverEntryPoint(name, &same, cudaEnableDefault, nullptr) == cudaSuccess);
#pragma GCC diagnostic pop
  CHECK(same == function);

  // CUDA 12.0 brought tensor maps.
  REQUIRE(cudaGetDriverEntryPointByVersion(name, &function, 11080, cudaEnableDefault, &status) == cudaSuccess);
  CHECK(function == nullptr);
  CHECK(status == cudaDriverEntryPointVersionNotSufficent);

  CHECK(cudaGetDriverEntryPointByVersion(name, &function, CUDART_VERSION + 10, 0, &status) == cudaErrorInvalidValue);
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, 3, &status) == cudaErrorInvalidValue);
  CHECK(cudaGetDriverEntryPointByVersion(name, nullptr, 12000, 0, &status) == cudaErrorInvalidValue);
  CHECK(cudaGetDriverEntryPointByVersion(nullptr, &function, 12000, 0, &status) == cudaErrorInvalidValue);
  options().devices = 0;
  CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, &status) == cudaErrorNoDevice);
  cudaGetLastError();
  options().devices = 1;
  CHECK(mentions(fault_of([&] { cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status); }),
                 "cuMemAlloc is not modelled"));
}

TEST_CASE("tensor map: keeps its arguments") {
  options().compute_capability = 90;
  const Encoding encoding{.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                          .address = 0x7000010,
                          .extents = {100, 60, 7},
                          .strides = {416, 416 * 64},
                          .box = {16, 8, 2},
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_64B};
  CUtensorMap map;
  REQUIRE(encode(encoding, map) == CUDA_SUCCESS);
  TensorMap held;
  std::memcpy(static_cast<void*>(&held), &map, sizeof held);
  CHECK(held.address == 0x7000010);
  CHECK(held.rank == 3);
  CHECK(std::vector<cuuint64_t>(held.extent, held.extent + 3) == encoding.extents);
  CHECK(std::vector<std::uint64_t>(held.stride, held.stride + 3) == std::vector<std::uint64_t>{4, 416, 416 * 64});
  CHECK(std::vector<cuuint32_t>(held.box, held.box + 3) == encoding.box);
  CHECK(held.row_bytes() == 64);
  CHECK(held.rows() == 16);
  CHECK(calls()["cuTensorMapEncodeTiled"] == 1);
}

/// Returns the status for a map whose arguments are right except for one change.
template <class Change>
CUresult encoded(Change change) {
  Encoding encoding{
      .extents = {100, 60, 7}, .strides = {208, 208 * 64}, .box = {64, 8, 2}, .swizzle = CU_TENSOR_MAP_SWIZZLE_128B};
  change(encoding);
  CUtensorMap map;
  return encode(encoding, map);
}

TEST_CASE("tensor map: values outside cuda.h's limits are invalid") {
  options().compute_capability = 90;
  constexpr CUresult valid = CUDA_SUCCESS, invalid = CUDA_ERROR_INVALID_VALUE;
  using E = Encoding;
  CHECK(encoded([](E&) {}) == valid);
  // The rank.
  CHECK(encoded([](E& e) { e.rank = 0; }) == invalid);
  CHECK(encoded([](E& e) {
          e = {.extents = {1, 1, 1, 1, 1}, .strides = {16, 16, 16, 16}, .box = {8, 1, 1, 1, 1}};
        }) == valid);
  CHECK(encoded([](E& e) {
          e = {.extents = {1, 1, 1, 1, 1, 1}, .strides = {16, 16, 16, 16, 16}, .box = {8, 1, 1, 1, 1, 1}};
        }) == invalid);
  CHECK(encoded([](E& e) { e = {.extents = {1}, .strides = {}, .box = {8}}; }) == valid);
  // The address.
  CHECK(encoded([](E& e) { e.address += 16; }) == valid);
  CHECK(encoded([](E& e) { e.address += 8; }) == invalid);
  // Extents.
  for (std::size_t d = 0; d < 3; ++d) {
    CHECK(encoded([&](E& e) { e.extents[d] = 0; }) == invalid);
    CHECK(encoded([&](E& e) { e.extents[d] = one << 32; }) == valid);
    CHECK(encoded([&](E& e) { e.extents[d] = (one << 32) + 1; }) == invalid);
  }
  // Strides.
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK(encoded([&](E& e) { e.strides[d] += 8; }) == invalid);
    CHECK(encoded([&](E& e) { e.strides[d] = (one << 40) - 16; }) == valid);
    CHECK(encoded([&](E& e) { e.strides[d] = one << 40; }) == invalid);
  }
  // The box.
  for (std::size_t d = 0; d < 3; ++d) CHECK(encoded([&](E& e) { e.box[d] = 0; }) == invalid);
  for (std::size_t d = 1; d < 3; ++d) {
    CHECK(encoded([&](E& e) { e.box[d] = 256; }) == valid);
    CHECK(encoded([&](E& e) { e.box[d] = 257; }) == invalid);
  }
  CHECK(encoded([](E& e) { e.box[0] = 60; }) == invalid);  // 120 bytes
  CHECK(encoded([](E& e) { e.box[0] = 72; }) == invalid);  // more bytes than the swizzle is wide
  CHECK(encoded([](E& e) { e.box[0] = 256, e.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE; }) == valid);
  CHECK(encoded([](E& e) { e.box[0] = 264, e.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE; }) == invalid);
  CHECK(encoded([](E& e) { e.box[0] = 40, e.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }) == invalid);
  CHECK(encoded([](E& e) { e.box[0] = 24, e.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; }) == invalid);
  // Strides of elements; the first one is ignored.
  CHECK(encoded([](E& e) { e.element_strides = {1, 0, 1}; }) == invalid);
  CHECK(encoded([](E& e) { e.element_strides = {1, 1, 9}; }) == invalid);
  CHECK(encoded([](E& e) { e.element_strides = {2, 1, 1}; }) == valid);
  // Enumerators.
  CHECK(encoded([](E& e) { e.type = static_cast<CUtensorMapDataType>(16); }) == invalid);
  CHECK(encoded([](E& e) { e.interleave = static_cast<CUtensorMapInterleave>(3); }) == invalid);
  CHECK(encoded([](E& e) { e.swizzle = static_cast<CUtensorMapSwizzle>(7); }) == invalid);
  CHECK(encoded([](E& e) { e.promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B; }) == valid);
  CHECK(encoded([](E& e) { e.promotion = static_cast<CUtensorMapL2promotion>(4); }) == invalid);
  CHECK(encoded([](E& e) { e.fill = static_cast<CUtensorMapFloatOOBfill>(2); }) == invalid);

  // The map itself.
  alignas(64) char bytes[2 * sizeof(CUtensorMap)];
  const Encoding right{.extents = {8}, .strides = {}, .box = {8}};
  CHECK(encode(right, *reinterpret_cast<CUtensorMap*>(bytes)) == valid);
  CHECK(encode(right, *reinterpret_cast<CUtensorMap*>(bytes + 64)) == valid);
  CHECK(encode(right, *reinterpret_cast<CUtensorMap*>(bytes + 32)) == invalid);
}

TEST_CASE("tensor map: unsupported values fault with a message") {
  options().compute_capability = 90;
  using E = Encoding;
  const auto fault = [](auto change) { return fault_of([&] { encoded(change); }); };
  CHECK(mentions(fault([](E& e) { e.type = CU_TENSOR_MAP_DATA_TYPE_UINT8; }),
                 "cuTensorMapEncodeTiled: data type 0 (float16, bfloat16 and float32 are) is not modelled"));
  CHECK(mentions(fault([](E& e) { e.type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; }), "data type 11"));
  CHECK(mentions(fault([](E& e) { e.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; }), "an interleaved layout"));
  CHECK(mentions(fault([](E& e) { e.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B; }), "swizzle 4"));
  CHECK(mentions(fault([](E& e) { e.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; }), "a fill with NaN"));
  CHECK(mentions(fault([](E& e) { e.element_strides = {1, 1, 2}; }), "a stride of elements other than 1"));
  CHECK(mentions(fault([](E& e) { e.box[0] = 32; }), "a box of 64 bytes in a row with a swizzle of 128"));
  options().compute_capability = 80;
  CHECK(mentions(fault([](E&) {}), "expected a device of compute capability 90 or newer, got 80"));
}

TEST_CASE("fail: makes cuTensorMapEncodeTiled fail") {
  options().compute_capability = 90;
  fail("cuTensorMapEncodeTiled", 1, cudaErrorInvalidValue);
  CHECK(encoded([](Encoding&) {}) == CUDA_SUCCESS);
  CHECK(encoded([](Encoding&) {}) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gatefold::cuda_emulator
