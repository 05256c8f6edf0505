// Pairs of expert products in bfloat16: the middle values are rounded, packed weights give the same results, and double
// values are not rounded.
#include "gatefold/backend/cuda/bf16_experts.cuh"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "gatefold/backend/initial_values.hpp"
#include "support/grouped_product.cuh"
#include "support/rounded_once.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// An epilogue that returns first − second, or first, and also stores it in bfloat16.
template <std::size_t M>
struct Keep {
  Bfloat16* kept;
  Index columns;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value v) const {
    at.store(kept + s * columns + j, v);
    return v;
  }
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v,
                                           typename A::Value w) const {
    return (*this)(at, e, s, j, v - w);
  }
};

/// Checks two consecutive products of whole numbers. All values are exact except the middle values, which are rounded
/// once.
template <std::size_t M>
void check_pair(std::vector<Index> counts, Index depth, Index middle, Index last, bool packed) {
  Cuda::Context memory;
  CudaBf16::Context ctx;
  const ProductCase c{.counts = std::move(counts), .depth = depth, .columns = middle, .gather = true, .first = 2};
  CAPTURE(c);
  BothGroups groups(memory, c);
  const auto small = [](Index n, std::uint64_t seed) {
    auto v = random_vector<float>(n, seed);
    for (float& x : v) x = std::round(3 * x);
    return v;
  };
  Both<float> a(memory, small(c.items() * depth, 1)), down(memory, small(c.experts() * middle * last, 2)),
      out(memory, std::vector<float>(static_cast<std::size_t>(c.slots() * last), -77));
  Both<float> first(memory, small(c.experts() * depth * middle, 3)),
      second(memory, small(c.experts() * depth * middle, 4));
  Both<Bfloat16> kept(memory, std::vector<Bfloat16>(static_cast<std::size_t>(c.slots() * middle)));
  const auto g = groups.on_device();
  const auto weights = [&](Both<float>& w, Index rows, Index columns) {
    return View<const float, 3, CudaBf16>{w.device.data(), c.experts(), rows, columns};
  };
  std::array<View<const float, 3, CudaBf16>, M> up;
  up[0] = weights(first, depth, middle);
  if constexpr (M == 2) up[1] = weights(second, depth, middle);
  CudaBf16::PackedWeights rounded;
  if (packed)
    for (const auto& w : {up[0], up[M - 1], weights(down, middle, last)})
      CudaBf16::pack(ctx, w, Weights::bfloat16, rounded);
  const auto used = ctx.use(rounded);
  CudaBf16::grouped_pair(
      ctx, Groups<CudaBf16>{{g.offsets.data(), g.offsets.size()}, {g.rows.data(), g.rows.size()}, g.slots},
      View<const float, 2, CudaBf16>{a.device.data(), c.items(), depth}, up, Keep<M>{kept.device.data(), middle},
      weights(down, middle, last), View<float, 2, CudaBf16>{out.device.data(), c.slots(), last}, functor::Store{});
  // Repeats the pair with results that are stored in bfloat16.
  DeviceArray<Bfloat16> stored(memory,
                               std::vector<Bfloat16>(static_cast<std::size_t>(c.slots() * last), Bfloat16::from(-77)));
  CudaBf16::grouped_pair(
      ctx, Groups<CudaBf16>{{g.offsets.data(), g.offsets.size()}, {g.rows.data(), g.rows.size()}, g.slots},
      View<const float, 2, CudaBf16>{a.device.data(), c.items(), depth}, up, Keep<M>{kept.device.data(), middle},
      weights(down, middle, last), View<Bfloat16, 2, CudaBf16>{stored.data(), c.slots(), last}, functor::Store{});
  ctx.synchronize();
  const auto got = out.device.values();
  const auto got_kept = kept.device.values();
  const auto got_stored = stored.values();
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got_stored[i].bits == Bfloat16::from(got[i]).bits);
  groups.each_slot([&](Index e, Index s) {
    std::vector<double> hidden;
    for (Index j = 0; j < middle; ++j) {
      float sum = 0;  // exact, because the numbers are small and whole
      for (Index k = 0; k < depth; ++k) {
        const auto at = static_cast<std::size_t>((e * depth + k) * middle + j);
        sum += a.host[static_cast<std::size_t>(groups.row(s) * depth + k)] *
               (first.host[at] - (M == 2 ? second.host[at] : 0.f));
      }
      const Bfloat16 once = Bfloat16::from(sum);
      CHECK(got_kept[static_cast<std::size_t>(s * middle + j)].bits == once.bits);
      hidden.push_back(static_cast<double>(static_cast<float>(once)));
    }
    for (Index j = 0; j < last; ++j) {
      double sum = 0;
      for (Index k = 0; k < middle; ++k)
        sum += hidden[static_cast<std::size_t>(k)] *
               static_cast<double>(down.host[static_cast<std::size_t>((e * middle + k) * last + j)]);
      CHECK(static_cast<double>(got[static_cast<std::size_t>(s * last + j)]) == sum);
    }
  });
}

}  // namespace

TEST_CASE("cuda: grouped_pair: equals loops with plain and packed weights") {
  for (const bool packed : {false, true})
    for (const auto& [middle, last] : {std::pair(64, 24), std::pair(37, 13)}) {
      check_pair<1>({0, 3, 17, 1}, 36, middle, last, packed);
      check_pair<2>({0, 3, 17, 1}, 20, middle, last, packed);
      check_pair<1>({0, 140, 0, 97}, 36, middle, last, packed);
      check_pair<2>({70, 0, 60}, 20, middle, last, packed);
    }
}

TEST_CASE("cuda: rounded_once: gives the same bits as rounding per product") {
  for (const bool gather : {false, true}) {
    check_rounded_once({.counts = {200, 0, 129}, .depth = 136, .columns = 140, .gather = gather, .first = 5});
    check_rounded_once({.counts = {3, 0, 9}, .depth = 13, .columns = 140, .gather = gather, .first = 5});
  }
  check_pair_in_place({.counts = {30, 0, 40}, .depth = 136, .columns = 24});
}

TEST_CASE("cuda: CudaBf16 does not round doubles") {
  CudaBf16::Context ctx;
  const Tensor<double, 2, CudaBf16> a = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 8);
  const Tensor<double, 3, CudaBf16> w = uniform_tensor<double>(ctx, Seed{2}, 1, 1, 8, 3);
  Tensor<double, 2, CudaBf16> c(4, 3);
  Tensor<Index, 1, CudaBf16> offsets(2);
  const std::vector<Index> all{0, 4};
  CudaBf16::from_host(ctx, 2, all.data(), offsets.data());
  CudaBf16::grouped_gemm(ctx, Groups<CudaBf16>{offsets, {}, 4}, a.view(), w.view(), false, c.view(), functor::Store{});
  std::vector<double> of_a(32), of_w(24), got(12);
  CudaBf16::to_host(ctx, 32, a.data(), of_a.data());
  CudaBf16::to_host(ctx, 24, w.data(), of_w.data());
  CudaBf16::to_host(ctx, 12, c.data(), got.data());
  for (Index s = 0; s < 4; ++s)
    for (Index j = 0; j < 3; ++j)
      CHECK(got[static_cast<std::size_t>(s * 3 + j)] ==
            chain(Index(8), of_a.data() + s * 8, of_w.data() + j, Index(3)));
}
