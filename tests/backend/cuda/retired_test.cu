// Memory that a pool's object has outgrown but that graphs may still use.
#include "gatefold/backend/cuda/retired.cuh"

#include <doctest/doctest.h>

#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/graph.cuh"

using namespace gatefold;

namespace {

/// Returns whether the memory is allocated: whether it can be written.
bool is_held(void* p) {
  const bool held = cudaMemset(p, 0, 4) == cudaSuccess;
  if (!held) cudaGetLastError();
  return held;
}

}  // namespace

TEST_CASE("Retired: holds memory retired in its Scope until its destructor") {
  void *mine = Cuda::allocate(16), *nested = Cuda::allocate(16);
  CHECK_FALSE(detail_::device::Retired::keep(mine));
  {
    detail_::device::Retired retired;
    {
      const detail_::device::Retired::Scope keeping(&retired);
      CHECK(detail_::device::Retired::keep(mine));
      {
        const detail_::device::Retired::Scope nobody(nullptr);
        CHECK_FALSE(detail_::device::Retired::keep(nested));
      }
      CHECK(detail_::device::Retired::keep(nested));
    }
    CHECK(is_held(mine));
    CHECK(is_held(nested));
  }
}

TEST_CASE("ObjectPool: keeps outgrown memory after a capture") {
  Cuda::Context ctx;
  const auto grow = [&](Index size) {
    const auto borrowed = ctx.acquire<Tensor<float, 1, Cuda>>();
    borrowed->resize(size);
    return borrowed->data();
  };
  float* const used = grow(8);
  const test::Graph graph(ctx.stream(), [&] { fill(ctx, *ctx.acquire<Tensor<float, 1, Cuda>>(), 3); });
  CHECK(grow(1 << 20) != used);
  graph.launch();
  float found = 0;
  Cuda::to_host(ctx, 1, used, &found);
  CHECK(found == 3);
}
