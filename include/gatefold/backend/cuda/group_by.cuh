#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <cub/device/device_radix_sort.cuh>

#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::detail_::device {

/// Prepares the key at index i for sorting: key[i] = keys[i] as an unsigned number, and position[i] = i. A key outside
/// of [0, groups) becomes `groups`, so that it is sorted to the end.
struct SortKey {
  const Index* keys;
  Index groups;
  std::uint32_t* key;
  Index* position;
  __device__ void operator()(Index i) const {
    const Index k = keys[i];
    key[i] = static_cast<std::uint32_t>(0 <= k && k < groups ? k : groups);
    position[i] = i;
  }
};

/// Finds where each group begins in the sorted keys: offsets[g] is the number of keys less than g. The call for
/// position i writes the offsets of the groups that begin at i.
struct GroupsFrom {
  const std::uint32_t* sorted;
  Index n, groups;
  Index* offsets;
  __device__ void operator()(Index i) const {
    const Index last = i == n ? groups : static_cast<Index>(sorted[i]);
    for (Index g = i == 0 ? 0 : static_cast<Index>(sorted[i - 1]) + 1; g <= last; ++g) offsets[g] = i;
  }
};
/// Finds where each group begins in the sorted keys, as GroupsFrom does, but by bisection with one thread for each
/// group. It is used if one call of GroupsFrom might have to write the offsets of too many groups.
struct FirstOfGroup {
  const std::uint32_t* sorted;
  Index n;
  Index* offsets;
  __device__ void operator()(Index g) const {
    Index low = 0, high = n;
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (static_cast<Index>(sorted[middle]) < g)
        low = middle + 1;
      else
        high = middle;
    }
    offsets[g] = low;
  }
};

/// Runs one of CUB's device algorithms, with temporary memory from scratch. It calls f(storage, bytes) twice: first
/// with null to get the number of bytes, then to run the algorithm.
template <class Context, class F>
void run_in_scratch(Context& ctx, const char* call, const F& f) {
  std::size_t bytes = 0;
  expect_success(f(nullptr, bytes), call);
  const auto mark = ctx.mark();
  expect_success(f(ctx.template scratch<std::byte>(static_cast<Index>(bytes) + 1).data(), bytes), call);
}

/// Sorts the positions of keys by key, with a stable radix sort over as many bits as `groups` has.
/// @param offsets  [groups + 1] out: where each group begins in `order`
/// @param order    [n] out: the positions of the keys in [0, groups), sorted by key; then all other positions
/// @throws ArgumentError unless n < 2³¹ and groups < 2³¹ − 1
template <class Context>
void group_by(Context& ctx, Index n, const Index* keys, Index groups, Index* offsets, Index* order) {
  constexpr Index most = INT32_MAX;
  expect(n <= most, "Cuda::group_by", "keys", Joined{"at most ", most, " keys"}, n);
  expect(groups < most, "Cuda::group_by", "groups", Joined{"less than ", most}, groups);
  const auto mark = ctx.mark();
  std::uint32_t* key = ctx.template scratch<std::uint32_t>(n).data();
  std::uint32_t* sorted = ctx.template scratch<std::uint32_t>(n).data();
  Index* position = ctx.template scratch<Index>(n).data();
  for_each(ctx.stream(), n, SortKey{keys, groups, key, position});
  if (n > 0)
    run_in_scratch(ctx, "cub::DeviceRadixSort::SortPairs", [&](void* storage, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortPairs(storage, bytes, key, sorted, position, order, static_cast<int>(n), 0,
                                             std::bit_width(static_cast<std::uint32_t>(groups)), ctx.stream());
    });
  constexpr Index few = 1024;
  if (groups <= few)
    for_each(ctx.stream(), n + 1, GroupsFrom{sorted, n, groups, offsets});
  else
    for_each(ctx.stream(), groups + 1, FirstOfGroup{sorted, n, offsets});
}

}  // namespace gatefold::detail_::device
