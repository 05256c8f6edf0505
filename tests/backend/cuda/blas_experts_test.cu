// The grouped products by cuBLAS, in contexts with the option blas_experts. They equal the products of the library's
// own kernels, except that cuBLAS adds in another order.
#include "gatefold/backend/cuda/blas_experts.cuh"

#include <doctest/doctest.h>

#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Bounds the difference of sums of at most 130 products of numbers below 1, and of products of such sums.
template <class T>
constexpr double kTolerance = 2000 * std::numeric_limits<T>::epsilon();

template <class T>
void check(const ProductCase& c) {
  CAPTURE(c);
  Cuda::Context ctx({.blas_experts = true});
  CHECK(difference_of_product<T>(ctx, c, kTolerance<T>) == "");
  CHECK(difference_of_gradients<T>(ctx, c, kTolerance<T>) == "");
  CHECK(difference_of_gradients<T>(ctx, c, kTolerance<T>, true, true) == "");
  if constexpr (std::is_same_v<T, double>) {  // also two products in turn, the first with one matrix or two
    CHECK(difference_of_pair<T, 1>(ctx, c, 6, kTolerance<T>) == "");
    CHECK(difference_of_pair<T, 2>(ctx, c, 6, kTolerance<T>) == "");
  }
}

constexpr Index kSlots = 5;

/// Products whose results show which of two experts each slot belongs to.
class Slots {
 public:
  explicit Slots(Cuda::Context& ctx) : ctx_(ctx) {}

  Index* offsets() { return offsets_.data(); }
  const float* weights() { return w_.data(); }
  /// c[s] = w[e]
  void gemm(bool transpose, DeviceArray<float>& c) {
    Cuda::grouped_gemm(ctx_, groups(), ones_.in(kSlots, 1), w_.in(2, 1, 1), transpose, c.as(kSlots, 1),
                       functor::Store{});
  }
  /// dw[e] += the number of slots of expert e
  void outer(DeviceArray<float>& dw) {
    Cuda::grouped_outer(ctx_, groups(), ones_.in(kSlots, 1), ones_.in(kSlots, 1), dw.as(2, 1, 1));
  }

 private:
  Groups<Cuda> groups() { return {offsets_.in(3), {}, kSlots}; }

  Cuda::Context& ctx_;
  DeviceArray<Index> offsets_{ctx_, {0, 2, kSlots}};
  DeviceArray<float> w_{ctx_, {1.001F, 2}}, ones_{ctx_, std::vector<float>(kSlots, 1)};
};

constexpr Index kOthers[] = {0, 3, kSlots};
/// offsets[i] = kOthers[i]
struct WriteOthers {
  Index* offsets;
  GATEFOLD_HD void operator()(Index i) const { offsets[i] = i < 2 ? 3 * i : kSlots; }
  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index i) const {
    if (lanes.lane == 0) (*this)(i);
  }
};

/// Checks that two products with only write(ctx, offsets) between them use the old offsets first and then the new ones.
template <class W>
void expect_others_are_seen(bool transpose, const W& write) {
  Cuda::Context ctx({.blas_experts = true});
  Slots slots(ctx);
  DeviceArray<float> before(ctx, std::vector<float>(kSlots)), after(ctx, std::vector<float>(kSlots)), dw(ctx, {0, 0});
  slots.gemm(transpose, before);
  write(ctx, slots.offsets());
  slots.gemm(transpose, after);
  slots.outer(dw);
  CHECK(before.values() == std::vector<float>{1.001F, 1.001F, 2, 2, 2});
  CHECK(after.values() == std::vector<float>{1.001F, 1.001F, 1.001F, 2, 2});
  CHECK(dw.values() == std::vector<float>{3, 2});
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: cuBLAS experts: equal the library's own products", T, double, float) {
  for (const bool transpose : {false, true})
    for (const bool gather : {false, true}) {
      check<T>({{0, 3, 17, 0, 1, 0}, 5, 7, transpose, gather});
      check<T>({{130, 0, 33}, 12, 20, transpose, gather});
    }
}

TEST_CASE_TEMPLATE("cuda: cuBLAS experts: do not touch slots of other experts", T, double, float) {
  check<T>({.counts = {2, 0, 40}, .depth = 12, .columns = 8, .gather = true, .first = 7, .more = 50});
  check<T>({.counts = {2, 0, 40}, .depth = 12, .columns = 8, .first = 7, .more = 50});
}

TEST_CASE_TEMPLATE("cuda: cuBLAS experts: accept empty slots, experts, columns or depth", T, double, float) {
  check<T>({.counts = {}, .depth = 4, .columns = 4});
  check<T>({.counts = {0, 0, 0}, .depth = 4, .columns = 4});
  check<T>({.counts = {0}, .depth = 4, .columns = 4, .more = 0});
  check<T>({.counts = {3, 2}, .depth = 4, .columns = 0});
  check<T>({.counts = {3, 2}, .depth = 0, .columns = 4});
}

TEST_CASE("cuda: cuBLAS experts: read offsets that a primitive has overwritten") {
  for (const bool transpose : {false, true}) {
    expect_others_are_seen(transpose, [](Cuda::Context& ctx, Index* to) { Cuda::from_host(ctx, 3, kOthers, to); });
    expect_others_are_seen(transpose, [](Cuda::Context& ctx, Index* to) { Cuda::for_each(ctx, 3, WriteOthers{to}); });
    expect_others_are_seen(transpose, [](Cuda::Context& ctx, Index* to) { Cuda::for_rows(ctx, 3, WriteOthers{to}); });
    expect_others_are_seen(transpose, [](Cuda::Context& ctx, Index* to) {
      CHECK(cudaMemcpyAsync(to, kOthers, sizeof(kOthers), cudaMemcpyHostToDevice, ctx.stream()) == cudaSuccess);
    });
  }
}

TEST_CASE("cuda: cuBLAS experts: forward reads externally changed offsets") {
  expect_others_are_seen(false, [](Cuda::Context&, Index* to) {
    CHECK(cudaMemcpy(to, kOthers, sizeof(kOthers), cudaMemcpyHostToDevice) == cudaSuccess);
  });
}

#ifdef NDEBUG  // assertions would compare the host copy with the offsets and detect the change
/// The backward pass relies on offsets that do not change after forward. Here the offsets change, and the backward pass
/// gives the products of the old offsets, which shows that it does not read the offsets again.
TEST_CASE("cuda: cuBLAS experts: backward reuses the offsets of forward") {
  Cuda::Context ctx({.blas_experts = true});
  Slots slots(ctx);
  DeviceArray<float> forward(ctx, std::vector<float>(kSlots)), backward(ctx, std::vector<float>(kSlots)),
      dw(ctx, {0, 0}), again(ctx, {0, 0});
  slots.gemm(false, forward);
  CHECK(cudaMemcpy(slots.offsets(), kOthers, sizeof(kOthers), cudaMemcpyHostToDevice) == cudaSuccess);
  slots.gemm(true, backward);
  slots.outer(dw);
  CHECK(backward.values() == std::vector<float>{1.001F, 1.001F, 2, 2, 2});
  CHECK(dw.values() == std::vector<float>{2, 3});
  slots.outer(again);  // values() calls the primitive to_host, which discards the host copy of the offsets
  CHECK(again.values() == std::vector<float>{3, 2});
}
#endif

TEST_CASE("cuda: cuBLAS experts: 600 experts equal loops") {
  ProductCase c{.counts = std::vector<Index>(600, 1), .depth = 2, .columns = 3};
  c.counts[1] = 0;
  check<float>(c);
}

TEST_CASE("cuda: cuBLAS experts: ignore bfloat16 copies of the weights") {
  Cuda::Context ctx({.blas_experts = true});
  Slots slots(ctx);
  DeviceArray<float> c(ctx, std::vector<float>(kSlots));
  Cuda::PackedWeights packed;
  Cuda::pack(ctx, View<const float, 3, Cuda>(slots.weights(), 2, 1, 1), Weights::bfloat16, packed);
  const auto used = ctx.use(packed);
  slots.gemm(false, c);
  CHECK(c.values() == std::vector<float>{1.001F, 1.001F, 2, 2, 2});  // 1.001 lies between two values of bfloat16
}

TEST_CASE("cuda: an epilogue may add the previous result") {
  for (const bool blas_experts : {false, true}) {
    Cuda::Context ctx({.blas_experts = blas_experts});
    const auto a = constant_tensor<double>(ctx, 0.5, 3, 4);     // [S, depth]
    const auto w = constant_tensor<double>(ctx, 1.5, 1, 4, 8);  // [E, depth, columns]
    auto c = constant_tensor<double>(ctx, 5, 3, 8);
    const auto mark = ctx.mark();
    Cuda::grouped_gemm(ctx, one_group(ctx, 3), a.view(), w.view(), false, c.view(),
                       functor::AddTo<double, Cuda>{c.view()});
    std::vector<double> got(24);
    Cuda::to_host(ctx, 24, std::as_const(c).data(), got.data());
    CHECK(got == std::vector<double>(24, 5 + 4 * 0.5 * 1.5));
  }
}
