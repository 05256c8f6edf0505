// Which kernel computes which expert, and which CUDA calls a product makes. The emulator counts them.
#include "gatefold/backend/cuda/product.cuh"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda_emulator/calls.hpp"
#include "cuda_emulator/launch.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;
using cuda_emulator::calls;

namespace {

constexpr Index depth = 16, columns = 64;

/// One product of experts with the given numbers of rows.
struct Product {
  explicit Product(const std::vector<Index>& counts) {
    std::vector<Index> at{0};
    for (const Index count : counts) at.push_back(at.back() + count);
    experts = static_cast<Index>(counts.size());
    slots = at.back();
    offsets.emplace(ctx, at);
    a.emplace(ctx, random_vector<float>(slots * depth, 1));
    w.emplace(ctx, random_vector<float>(experts * depth * columns, 2));
    c.emplace(ctx, std::vector<float>(static_cast<std::size_t>(slots * columns)));
  }
  void run() {
    Cuda::grouped_gemm(ctx, Groups<Cuda>{offsets->in(experts + 1), {}, slots}, a->in(slots, depth),
                       w->in(experts, depth, columns), false, c->as(slots, columns), functor::Store{});
  }

  Cuda::Context ctx;
  Index experts = 0, slots = 0;
  std::optional<DeviceArray<Index>> offsets;
  std::optional<DeviceArray<float>> a, w, c;
};

/// How many rows of c the kernels of some name store, and how often they are launched.
struct Share {
  Index rows = 0;
  std::uint64_t launches = 0;
  bool operator==(const Share&) const = default;
};
Share share_of(const std::string& kernel, const std::vector<Index>& counts) {
  Product product(counts);
  cuda_emulator::counters_by_kernel().clear();
  product.run();
  Share share;
  for (const auto& [name, counters] : cuda_emulator::counters_by_kernel())
    if (name.find(kernel) != std::string::npos) {
      share.rows += static_cast<Index>(counters.global_bytes_stored / (columns * sizeof(float)));
      share.launches += counters.launches;
    }
  return share;
}

}  // namespace

TEST_CASE("grouped_gemm: chooses the kernel per expert, not by average") {
  // 53 and 13 rows on average
  const std::vector<Index> one_hot{200, 0, 3, 32, 33}, hot_among_many{100, 1, 1, 1, 1, 1, 1, 1};
  CHECK(share_of("skinny", one_hot) == Share{35, 1});
  CHECK(share_of("slots_are_rows", one_hot) == Share{233, 1});
  CHECK(share_of("skinny", hot_among_many) == Share{7, 1});
  CHECK(share_of("slots_are_rows", hot_among_many) == Share{100, 1});
}

TEST_CASE("grouped_gemm: launches one kernel if all experts have few rows") {
  CHECK(share_of("skinny", {20, 0, 12}) == Share{32, 1});
  CHECK(share_of("slots_are_rows", {20, 0, 12}) == Share{0, 0});
  CHECK(share_of("slots_are_rows", {20, 0, 13}) == Share{0, 1});  // launched because one expert could have had all rows
}

TEST_CASE("grouped_gemm: queries the occupancy once") {
  Product product({200, 40});
  const auto asked = [] { return calls()["cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"]; };
  product.run();
  CHECK(asked() == 1);
  for (int i = 0; i < 3; ++i) product.run();
  CHECK(asked() == 1);
}
