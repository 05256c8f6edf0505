#include "gatefold/backend/transfer.hpp"

#include <doctest/doctest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive_backend.hpp"

using namespace gatefold;
using test::Naive;

namespace {

template <class B>
struct Pair {
  Tensor<double, 2, B> weight;
  std::vector<Tensor<Index, 1, B>> counts;
  GATEFOLD_PACK(weight, counts)
};

template <class B>
Pair<B> numbered() {
  Pair<B> p;
  p.weight.resize(2, 3);
  for (Index i = 0; i < 6; ++i) p.weight(i / 3, i % 3) = 0.5 * static_cast<double>(i);
  p.counts.resize(2);
  p.counts[1].resize(4);
  for (Index i = 0; i < 4; ++i) p.counts[1](i) = 10 + i;
  return p;
}

}  // namespace

TEST_CASE("transfer: a pack copied there and back is unchanged") {
  Cpu::Context ctx;
  const Pair<Naive> from = numbered<Naive>();
  Pair<Cpu> there;
  transfer(ctx, from, there);
  Pair<Naive> back;
  transfer(ctx, there, back);
  CHECK(there.weight(1, 2) == 2.5);
  REQUIRE(back.counts.size() == 2);
  CHECK(back.counts[0].size() == 0);
  CHECK(back.counts[1].size() == 4);
  for (Index i = 0; i < 6; ++i) CHECK(back.weight(i / 3, i % 3) == from.weight(i / 3, i % 3));
  for (Index i = 0; i < 4; ++i) CHECK(back.counts[1](i) == from.counts[1](i));
}

TEST_CASE("transfer: throws before writing if shapes differ") {
  Cpu::Context ctx;
  const Tensor<double, 2, Naive> from(2, 3);
  Tensor<double, 2, Cpu> to(3, 2);
  to(0, 0) = 7;
  CHECK_THROWS_WITH_AS(transfer(ctx, from.view(), to.view()), "transfer: to.extent(0): expected 2, got 3",
                       ArgumentError);
  CHECK(to(0, 0) == 7);
}

TEST_CASE("transfer: accepts plain host memory") {
  Cpu::Context ctx;
  const std::vector<double> from{1, 2, 3, 4, 5, 6};
  std::vector<double> back(6);
  Tensor<double, 2, Cpu> there(2, 3);
  transfer(ctx, HostView<const double, 2>(from.data(), 2, 3), there.view());
  CHECK(there(1, 0) == 4);
  transfer(ctx, std::as_const(there).view(), HostView<double, 2>(back.data(), 2, 3));
  CHECK(back == from);
}
