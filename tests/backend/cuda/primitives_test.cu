// The primitives of the CUDA backends: memory, copies, and all kinds of work captured in one graph.
#include "gatefold/backend/cuda/primitives.cuh"

#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/device_array.cuh"
#include "support/graph.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// A small step: sort slots, two products, their gradients and a sum.
template <class B>
struct Step {
  static constexpr Index slots = 50, experts = 4, depth = 12, columns = 8;
  typename B::Context& ctx;
  Tensor<Index, 1, B> keys, offsets, rows;
  Tensor<float, 2, B> a, square, c, product, db;
  Tensor<float, 3, B> w, dw;
  Tensor<float, 1, B> total;

  explicit Step(typename B::Context& context)
      : ctx(context),
        keys(slots),
        offsets(experts + 1),
        rows(slots),
        a(uniform_tensor<float>(ctx, Seed{2}, 1, slots, depth)),
        square(uniform_tensor<float>(ctx, Seed{4}, 1, columns, columns)),
        c(slots, columns),
        product(slots, columns),
        db(experts, columns),
        w(uniform_tensor<float>(ctx, Seed{3}, 1, experts, depth, columns)),
        dw(experts, depth, columns),
        total(1) {
    const auto numbers = random_integers(slots, 0, experts, 1);
    B::from_host(ctx, slots, numbers.data(), keys.data());
  }

  void run() {
    set_zero(ctx, dw);
    set_zero(ctx, db);
    set_zero(ctx, total);
    B::group_by(ctx, std::as_const(keys).view(), offsets, rows);
    const Groups<B> groups{offsets, rows, slots};
    B::grouped_gemm(ctx, groups, std::as_const(a).view(), std::as_const(w).view(), false, c.view(), functor::Store{});
    B::gemm(ctx, std::as_const(c).view(), false, std::as_const(square).view(), true, false, product.view(),
            functor::Store{});
    B::grouped_outer(ctx, groups, std::as_const(a).view(), std::as_const(product).view(), dw.view());
    B::grouped_sum(ctx, groups, std::as_const(product).view(), db.view());
    B::template reduce<float>(ctx, slots * columns, functor::Term<float>{product.data()}, total.data());
  }
  std::vector<float> results() {
    std::vector<float> all;
    each([&](const auto& part) {
      std::vector<float> values(static_cast<std::size_t>(part.size()));
      B::to_host(ctx, part.size(), part.data(), values.data());
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  }
  void spoil() {
    each([&](auto& part) { fill(ctx, part.view(), 7); });
  }

 private:
  void each(const auto& f) {
    f(c);
    f(product);
    f(dw);
    f(db);
    f(total);
  }
};

}  // namespace

TEST_CASE("cuda: to_host: waits for earlier work, complete on return") {
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

TEST_CASE("cuda: memory is aligned to 256 bytes and poison works") {
  Cuda::Context ctx;
  void* p = Cuda::allocate(100);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 256 == 0);
  Cuda::poison(p, 100);
  std::vector<unsigned char> bytes(100);
  Cuda::to_host(ctx, 100, static_cast<unsigned char*>(p), bytes.data());
  CHECK(bytes == std::vector<unsigned char>(100, 0xff));
  Cuda::release(p);
}

TEST_CASE("cuda: allocate: throws if memory is short, context stays usable") {
  Cuda::Context ctx;
  DeviceArray<double> x(ctx, {1, 2, 3});
  CHECK_THROWS_WITH_AS(Cuda::allocate(std::size_t(1) << 55), "cudaMalloc: cudaErrorMemoryAllocation: out of memory",
                       DeviceError);
  CHECK_NOTHROW(Cuda::for_each(ctx, 3, functor::Scale<double>{2, x.data()}));
  CHECK(difference({2, 4, 6}, x.values()) == "");
}

TEST_CASE_TEMPLATE("cuda: later steps allocate no memory and can be captured", B, Cuda, CudaBf16) {
  typename B::Context ctx;
  Step<B> step(ctx);
  step.run();
  const auto expected = step.results();
  const auto held = ctx.capacity();
  step.spoil();

  const Graph graph(ctx.stream(), [&] { step.run(); });
  CHECK(ctx.capacity() == held);
  CHECK(step.results()[0] == 7);  // nothing has run yet
  for (int launch = 0; launch < 2; ++launch) {
    graph.launch();
    CHECK(difference(expected, step.results()) == "");
    step.spoil();
  }
}
