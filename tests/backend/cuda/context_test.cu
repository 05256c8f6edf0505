// The context of the CUDA backends: its stream, its handles and its memory.
#include "gatefold/backend/cuda/context.cuh"

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

struct Kept {
  int uses = 0;
};

}  // namespace

TEST_CASE("cuda: Context: owns a stream and a cuBLAS handle") {
  Cuda::Context ctx, other;
  CHECK(ctx.stream() != other.stream());
  CHECK(ctx.blas() == ctx.blas());
  CHECK(ctx.blas() != other.blas());
  CHECK(!ctx.options().blas_experts);
  CHECK(!ctx.options().tf32);
  CHECK(Cuda::Context({.tf32 = true}).options().tf32);
  CHECK(!std::is_copy_constructible_v<Cuda::Context>);
}

TEST_CASE("cuda: Context: does not destroy the caller's stream") {
  cudaStream_t mine = nullptr;
  REQUIRE(cudaStreamCreate(&mine) == cudaSuccess);
  {
    Cuda::Context ctx(mine);
    CHECK(ctx.stream() == mine);
    DeviceArray<double> x(ctx, {1, 2, 3});
    Cuda::for_each(ctx, 3, functor::Scale<double>{2, x.data()});
    CHECK(difference({2, 4, 6}, x.values()) == "");
    cudaStream_t of_blas = nullptr;
    CHECK(cublasGetStream(ctx.blas(), &of_blas) == CUBLAS_STATUS_SUCCESS);
    CHECK(of_blas == mine);
  }
  CHECK(cudaStreamSynchronize(mine) == cudaSuccess);
  CHECK(cudaStreamDestroy(mine) == cudaSuccess);
}

TEST_CASE("cuda: Context: synchronize waits for the stream") {
  Cuda::Context ctx;
  DeviceArray<double> x(ctx, std::vector<double>(32));
  Cuda::for_each(ctx, 32, Slow{x.data()});
  ctx.synchronize();
  CHECK(cudaStreamQuery(ctx.stream()) == cudaSuccess);
}

TEST_CASE("cuda: Context: the next step reuses the scratch") {
  Cuda::Context ctx;
  const auto step = [&] {
    const auto mark = ctx.mark();
    const auto x = ctx.scratch<double>(1000, 3);
    CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0);
    fill(ctx, x, 1);
    return x.data();
  };
  const auto* first = step();
  const auto held = ctx.capacity();
  CHECK(held > 0);
  CHECK(step() == first);
  CHECK(ctx.capacity() == held);
}

TEST_CASE("cuda: Context: keeps objects that acquire returned") {
  Cuda::Context ctx;
  const Kept* first = nullptr;
  {
    const auto lent = ctx.acquire<Kept>();
    first = &*lent;
    lent->uses = 3;
    CHECK(&*ctx.acquire<Kept>() != first);
  }
  const auto again = ctx.acquire<Kept>();
  CHECK(&*again == first);
  CHECK(again->uses == 3);
}
