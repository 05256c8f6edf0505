// The context of the CUDA backend: its stream, its memory, its copies, and work of all primitives captured in a graph.
#include "gatefold/backend/cuda/cuda.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/backend/transfer.hpp"
#include "support/device_array.cuh"
#include "support/naive_backend.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

struct Slow {
  double* x;
  GATEFOLD_HD void operator()(Index i) const {
    double v = 1;
    for (int k = 0; k < 2000; ++k) v = v * 0.5 + 0.5 * static_cast<double>(i);
    x[i] = v;
  }
};

template <class B>
struct Pair {
  Tensor<double, 2, B> weight;
  std::vector<Tensor<Index, 1, B>> counts;
  static void each(auto&& f, auto&... p) {
    f("weight", p.weight...);
    f("counts", p.counts...);
  }
};

struct Kept {
  int uses = 0;
};

/// A little of everything: sort slots, two products, their gradients and a sum.
struct Step {
  static constexpr Index slots = 50, experts = 4, depth = 12, columns = 8;
  Cuda::Context& ctx;
  DeviceArray<Index> keys, offsets, rows;
  DeviceArray<float> a, w, square, c, product, dw, db, total;

  explicit Step(Cuda::Context& context)
      : ctx(context),
        keys(ctx, random_integers(slots, 0, experts, 1)),
        offsets(ctx, std::vector<Index>(experts + 1)),
        rows(ctx, std::vector<Index>(slots)),
        a(ctx, random_vector<float>(slots * depth, 2)),
        w(ctx, random_vector<float>(experts * depth * columns, 3)),
        square(ctx, random_vector<float>(columns * columns, 4)),
        c(ctx, std::vector<float>(slots * columns)),
        product(ctx, c.values()),
        dw(ctx, std::vector<float>(experts * depth * columns)),
        db(ctx, std::vector<float>(experts * columns)),
        total(ctx, std::vector<float>(1)) {}

  void run() {
    fill(ctx, dw.as(experts, depth, columns), 0);
    fill(ctx, db.as(experts, columns), 0);
    fill(ctx, total.as(1), 0);
    Cuda::group_by(ctx, keys.in(slots), offsets.as(experts + 1), rows.as(slots));
    const Groups<Cuda> groups{offsets.in(experts + 1), rows.in(slots), slots};
    Cuda::grouped_gemm(ctx, groups, a.in(slots, depth), w.in(experts, depth, columns), false, c.as(slots, columns),
                       fn::Store{});
    Cuda::gemm(ctx, c.in(slots, columns), false, square.in(columns, columns), true, false, product.as(slots, columns),
               fn::Store{});
    Cuda::grouped_outer(ctx, groups, a.in(slots, depth), product.in(slots, columns), dw.as(experts, depth, columns));
    Cuda::grouped_sum(ctx, groups, product.in(slots, columns), db.as(experts, columns));
    Cuda::reduce<float>(ctx, slots * columns, fn::Term<float>{product.data()}, total.data());
  }
  std::vector<float> results() {
    std::vector<float> all;
    for (auto* part : {&c, &product, &dw, &db, &total}) {
      const auto values = part->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
  void spoil() {
    for (auto* part : {&c, &product, &dw, &db, &total}) {
      const std::vector<float> sevens(part->values().size(), 7);
      Cuda::from_host(ctx, static_cast<Index>(sevens.size()), sevens.data(), part->data());
    }
  }
};

}  // namespace

TEST_CASE("cuda: the backend satisfies the porting contract") {
  static_assert(Backend<Cuda>);
  CHECK(!Cuda::is_host);
}

TEST_CASE("cuda: a context has a stream and a cuBLAS handle of its own") {
  Cuda::Context ctx, other;
  CHECK(ctx.stream() != other.stream());
  CHECK(ctx.blas() == ctx.blas());
  CHECK(ctx.blas() != other.blas());
  CHECK(!ctx.options().blas_experts);
  CHECK(!ctx.options().tf32);
  CHECK(Cuda::Context({.tf32 = true}).options().tf32);
  CHECK(!std::is_copy_constructible_v<Cuda::Context>);
}

TEST_CASE("cuda: a context on somebody's stream leaves it to them") {
  cudaStream_t mine = nullptr;
  REQUIRE(cudaStreamCreate(&mine) == cudaSuccess);
  {
    Cuda::Context ctx(mine);
    CHECK(ctx.stream() == mine);
    DeviceArray<double> x(ctx, {1, 2, 3});
    Cuda::for_each(ctx, 3, fn::Scale<double>{2, x.data()});
    CHECK(difference({2, 4, 6}, x.values()) == "");
    cudaStream_t of_blas = nullptr;
    CHECK(cublasGetStream(ctx.blas(), &of_blas) == CUBLAS_STATUS_SUCCESS);
    CHECK(of_blas == mine);
  }
  CHECK(cudaStreamSynchronize(mine) == cudaSuccess);
  CHECK(cudaStreamDestroy(mine) == cudaSuccess);
}

TEST_CASE("cuda: a copy to the host waits for what was asked before, and is finished on return") {
  Cuda::Context ctx;
  const Index n = 64;
  DeviceArray<double> x(ctx, std::vector<double>(n, -1));
  Cuda::for_each(ctx, n, Slow{x.data()});
  std::vector<double> y(n);
  Cuda::to_host(ctx, n, x.data(), y.data());
  for (Index i = 0; i < n; ++i) CHECK(y[static_cast<std::size_t>(i)] == static_cast<double>(i));
  Cuda::to_host<double>(ctx, 0, nullptr, nullptr);
  Cuda::from_host<double>(ctx, 0, nullptr, nullptr);
}

TEST_CASE("cuda: synchronize waits for the stream") {
  Cuda::Context ctx;
  DeviceArray<double> x(ctx, std::vector<double>(32));
  Cuda::for_each(ctx, 32, Slow{x.data()});
  ctx.synchronize();
  CHECK(cudaStreamQuery(ctx.stream()) == cudaSuccess);
}

TEST_CASE("cuda: memory is aligned to 256 bytes and can be poisoned") {
  Cuda::Context ctx;
  void* p = Cuda::allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 256 == 0);
  Cuda::poison(p, 100);
  std::vector<unsigned char> bytes(100);
  Cuda::to_host(ctx, 100, static_cast<unsigned char*>(p), bytes.data());
  CHECK(bytes == std::vector<unsigned char>(100, 0xff));
  Cuda::release(p);
}

TEST_CASE("cuda: memory that the device does not have is an error, after which work goes on") {
  Cuda::Context ctx;
  DeviceArray<double> x(ctx, {1, 2, 3});
  CHECK_THROWS_WITH_AS(Cuda::allocate(std::size_t(1) << 55), "cudaMalloc: cudaErrorMemoryAllocation: out of memory",
                       DeviceError);
  CHECK_NOTHROW(Cuda::for_each(ctx, 3, fn::Scale<double>{2, x.data()}));
  CHECK(difference({2, 4, 6}, x.values()) == "");
}

TEST_CASE("cuda: the next step finds the scratch of the last one") {
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

#ifndef NDEBUG
TEST_CASE("cuda: with assertions, scratch that was given back is overwritten") {
  Cuda::Context ctx;
  const Index n = 1000;
  const Index* given_back = nullptr;
  {
    const auto mark = ctx.mark();
    const auto x = ctx.scratch<Index>(n);
    fill(ctx, x, 1);
    given_back = x.data();
  }
  std::vector<Index> found(n);
  Cuda::to_host(ctx, n, given_back, found.data());
  CHECK(found == std::vector<Index>(n, -1));
}
#endif

TEST_CASE("cuda: what a context lends it keeps") {
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

TEST_CASE("cuda: views and packs travel to the device and back") {
  Cuda::Context ctx;
  Pair<Naive> there, back;
  there.weight.resize(2, 3);
  for (Index i = 0; i < 6; ++i) there.weight(i / 3, i % 3) = 0.5 * static_cast<double>(i);
  there.counts.resize(2);
  there.counts[1].resize(4);
  for (Index i = 0; i < 4; ++i) there.counts[1](i) = 10 + i;

  Pair<Cuda> on_device;
  transfer(ctx, there, on_device);
  REQUIRE(on_device.counts.size() == 2);
  CHECK(on_device.weight.extent(1) == 3);
  add_scaled(ctx, 2, on_device.weight.view(), on_device.weight.view());
  transfer(ctx, on_device, back);
  REQUIRE(back.counts.size() == 2);
  CHECK(back.counts[0].size() == 0);
  for (Index i = 0; i < 6; ++i) CHECK(back.weight(i / 3, i % 3) == 1.5 * static_cast<double>(i));
  for (Index i = 0; i < 4; ++i) CHECK(back.counts[1](i) == 10 + i);

  Tensor<double, 2, Naive> other(3, 2);
  CHECK_THROWS_WITH_AS(transfer(ctx, std::as_const(on_device.weight).view(), other.view()),
                       "transfer: to.extent(0): expected 2, got 3", ArgumentError);
}

TEST_CASE("cuda: random numbers are those of any backend") {
  Cuda::Context ctx;
  Naive::Context naive;
  const auto x = uniform_tensor<double>(ctx, Seed{3}, 2, 5, 7);
  const auto expected = uniform_tensor<double>(naive, Seed{3}, 2, 5, 7);
  Tensor<double, 2, Naive> got(5, 7);
  transfer(ctx, x.view(), got.view());
  CHECK(std::equal(got.data(), got.data() + 35, expected.data()));
}

TEST_CASE("cuda: after a first step nothing is allocated, and a step can be captured in a graph") {
  Cuda::Context ctx;
  Step step(ctx);
  step.run();
  const auto expected = step.results();
  const auto held = ctx.capacity();
  step.spoil();

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(ctx.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  step.run();
  REQUIRE(cudaStreamEndCapture(ctx.stream(), &graph) == cudaSuccess);
  CHECK(ctx.capacity() == held);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  CHECK(step.c.values()[0] == 7);  // nothing has run yet
  for (int launch = 0; launch < 2; ++launch) {
    REQUIRE(cudaGraphLaunch(executable, ctx.stream()) == cudaSuccess);
    CHECK(difference(expected, step.results()) == "");
    step.spoil();
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}
