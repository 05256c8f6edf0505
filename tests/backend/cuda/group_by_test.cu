// Sorting by group: stable, whatever the keys.
#include "gatefold/backend/cuda/group_by.cuh"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Sorts and compares with the definition: the positions of the first key, then the positions of the second key, and so
/// on. Elements after these positions are not compared.
std::string difference_of_groups(const std::vector<Index>& keys, Index groups) {
  const Index n = static_cast<Index>(keys.size());
  std::vector<std::vector<Index>> positions(static_cast<std::size_t>(groups));
  for (Index i = 0; i < n; ++i) {
    const Index key = keys[static_cast<std::size_t>(i)];
    if (0 <= key && key < groups) positions[static_cast<std::size_t>(key)].push_back(i);
  }
  std::vector<Index> order, offsets{0};
  for (const auto& of_group : positions) {
    order.insert(order.end(), of_group.begin(), of_group.end());
    offsets.push_back(static_cast<Index>(order.size()));
  }

  Cuda::Context ctx;
  DeviceArray<Index> key(ctx, keys), device_offsets(ctx, std::vector<Index>(offsets.size(), -5)),
      device_order(ctx, std::vector<Index>(keys.size(), -5));
  Cuda::group_by(ctx, key.in(n), device_offsets.as(groups + 1), device_order.as(n));
  if (const std::string at = difference(offsets, device_offsets.values()); !at.empty()) return "offsets" + at;
  auto kept = device_order.values();
  kept.resize(order.size());
  if (const std::string at = difference(order, kept); !at.empty()) return "order" + at;
  return {};
}

}  // namespace

TEST_CASE("cuda: group_by: accepts zero keys and zero groups") {
  CHECK(difference_of_groups({}, 0) == "");
  CHECK(difference_of_groups({}, 3) == "");
  CHECK(difference_of_groups({}, 2000) == "");
  CHECK(difference_of_groups({0, -1, 7}, 0) == "");
  Cuda::Context ctx;
  CHECK_NOTHROW(Cuda::group_by(ctx, View<const Index, 1, Cuda>{}, View<Index, 1, Cuda>{}, View<Index, 1, Cuda>{}));
}

TEST_CASE("cuda: group_by: accepts one group and empty groups anywhere") {
  CHECK(difference_of_groups({0, 0, 0, 0}, 1) == "");
  CHECK(difference_of_groups({3, 5, 3, 3, 5}, 9) == "");
  CHECK(difference_of_groups({8, 0, 8}, 9) == "");
  CHECK(difference_of_groups({3000, 5, 3000, 1024}, 3001) == "");
}

TEST_CASE("cuda: group_by: skips keys that are not a group") {
  CHECK(difference_of_groups({-1, 2, -7, 0, 2, -1}, 3) == "");
  CHECK(difference_of_groups({-1, -1}, 3) == "");
  CHECK(difference_of_groups({3, 2, 4, 0, 1000}, 3) == "");
  CHECK(difference_of_groups({4, 3, 4, 5}, 4) == "");
  // Keys that look like a group if half of their bits are lost.
  const Index word = Index(1) << 32, least = std::numeric_limits<Index>::min(),
              most = std::numeric_limits<Index>::max();
  CHECK(difference_of_groups({1, word + 1, 0, -word, most, least, word, 1, -word + 1}, 2) == "");
  CHECK(difference_of_groups({1, word + 1, 0, -word, most, least, word, 1, -word + 1}, 1500) == "");
}

TEST_CASE("cuda: group_by: is stable for every CUB algorithm") {
  for (const Index n : {1, 31, 33, 256, 1000, 4096, 4999, 5000, 5633, 8193}) {
    CAPTURE(n);
    CHECK(difference_of_groups(random_integers(n, -2, 11, 1), 8) == "");
    CHECK(difference_of_groups(std::vector<Index>(static_cast<std::size_t>(n), 3), 8) == "");
  }
}

TEST_CASE("cuda: group_by: is correct around powers of two") {
  for (const Index groups : {2, 3, 4, 255, 256, 257, 1023, 1024, 1025}) {
    CAPTURE(groups);
    CHECK(difference_of_groups(random_integers(700, -3, groups + 6, 2), groups) == "");
  }
  CHECK(difference_of_groups(random_integers(5000, -100, 70300, 3), 70000) == "");
  CHECK(difference_of_groups({69999, 65536, 65535, 0, 69999, 70000}, 70000) == "");
}

TEST_CASE("cuda: group_by: sizes beyond 31 bits throw before writing") {
  Cuda::Context ctx;
  const auto error_of = [&](Index keys, Index groups) {
    try {
      detail_::device::group_by(ctx, keys, nullptr, groups, nullptr, nullptr);
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("no ArgumentError");
  };
  CHECK(error_of(Index(1) << 31, 3) == "Cuda::group_by: keys: expected at most 2147483647 keys, got 2147483648");
  CHECK(error_of(1, INT32_MAX) == "Cuda::group_by: groups: expected less than 2147483647, got 2147483647");
  CHECK(ctx.capacity() == 0);
}

TEST_CASE("cuda: CUB call: releases scratch and names the failed call") {
  Cuda::Context ctx;
  int calls = 0;
  const auto asks_for = [&](std::size_t need) {
    return [&, need](void* storage, std::size_t& bytes) {
      CHECK((storage == nullptr) == (calls++ % 2 == 0));
      if (storage == nullptr) bytes = need;
      return bytes >= need ? cudaSuccess : cudaErrorInvalidValue;
    };
  };
  for (const std::size_t need : {0, 1, 1000}) detail_::device::run_in_scratch(ctx, "cub::Device", asks_for(need));
  CHECK(calls == 6);
  const auto held = ctx.capacity();
  const auto free = ctx.scratch<char>(1).data();
  CHECK(ctx.capacity() == held);
  CHECK(free != nullptr);
  CHECK_THROWS_WITH_AS(
      detail_::device::run_in_scratch(ctx, "cub::Device", [](void*, std::size_t&) { return cudaErrorInvalidValue; }),
      "cub::Device: cudaErrorInvalidValue: invalid argument", DeviceError);
}
