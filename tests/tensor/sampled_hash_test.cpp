#include "gatefold/tensor/sampled_hash.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

template <class T>
SampledHash of(const Tensor<T, 2, Cpu>& x, std::size_t most) {
  SampledHash hash;
  hash.add(x.view(), most);
  return hash;
}
/// Returns the indices of the elements of x that change the hash.
std::vector<Index> seen(Tensor<float, 2, Cpu>& x, std::size_t most) {
  std::vector<Index> found;
  const std::uint64_t before = of(x, most).hash;
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] += 1;
    if (of(x, most).hash != before) found.push_back(i);
    x.data()[i] -= 1;
  }
  return found;
}

}  // namespace

TEST_CASE("SampledHash: every element of a small array changes the hash") {
  for (const Index columns : {1, 2, 3, 7, 10}) {
    Tensor<float, 2, Cpu> x(3, columns);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i);
    CHECK(static_cast<Index>(seen(x, 16).size()) == x.size());
  }
}

TEST_CASE("SampledHash: a sample spreads from first to last element") {
  for (const Index rows : {5, 6, 9, 11, 64, 100, 333}) {
    for (const Index columns : {8, 16, 37}) {
      Tensor<float, 2, Cpu> x(rows, columns);
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 100);
      const auto found = seen(x, 16);
      CAPTURE(rows);
      CAPTURE(columns);
      CHECK(found.size() <= 2 * 17);
      CHECK(found.front() == 0);
      CHECK(found.back() == x.size() - 1);
      Index gap = 0;
      std::vector<bool> of_columns(static_cast<std::size_t>(columns));
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (i > 0) gap = found[i] - found[i - 1] > gap ? found[i] - found[i - 1] : gap;
        of_columns[static_cast<std::size_t>(found[i] % columns)] = true;
      }
      CHECK(gap <= x.size() / 16 + 6);  // a word is two floats, and strides are odd
      std::size_t different = 0;
      for (const bool one : of_columns) different += one;
      CHECK(different >= 4);  // rows are sampled in different columns
    }
  }
}

TEST_CASE("SampledHash: depends on the contents, not on the address") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 50, 8), other = uniform_tensor<float>(ctx, Seed{2}, 1, 50, 8);
  Tensor<float, 2, Cpu> same(50, 8);
  std::memcpy(same.data(), x.data(), static_cast<std::size_t>(x.size()) * sizeof(float));
  CHECK(of(same, 16).hash == of(x, 16).hash);
  CHECK(of(other, 16).hash != of(x, 16).hash);
  CHECK(of(x, 1000).hash != of(x, 16).hash);
}

TEST_CASE("SampledHash: zeros and empty arrays give bits 0") {
  Tensor<float, 2, Cpu> x(9, 9);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = 0;
  CHECK(of(x, 16).bits == 0);
  x(8, 8) = 1;
  CHECK(of(x, 16).bits != 0);
  CHECK(of(Tensor<float, 2, Cpu>(0, 5), 16).bits == 0);
}

using support::message_of;
using support::values;

namespace {

std::string refused(const std::string& place) {
  return place +
         ": saved: expected the values that forward saved for this x, got values of another batch, or x has "
         "changed since forward";
}

constexpr Index kItems = 7, kDim = 5;

/// Returns the message of the error that backward throws for a `saved` of another batch. Then backward must accept the
/// right batch.
template <class L>
std::string said_to_another_batch(const L& layer) {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, layer, kItems);
  p.forward();
  auto other = uniform_tensor<float>(ctx, Seed{77}, 1, kItems, layer.in_dim());
  std::swap(p.x, other);
  const auto before = values(p.dx, p.grads, p.dcarry);
  const std::string message = message_of([&] { p.backward(); });
  CHECK(support::same_bits(values(p.dx, p.grads, p.dcarry), before));
  std::swap(p.x, other);
  p.backward();
  return message;
}

}  // namespace

TEST_CASE("BatchStamp: saved values of another equal-sized batch throw") {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Linear{.model_dim = kDim}};
  CHECK(said_to_another_batch(Residual{update::Nesterov{}, mixture}) == refused("Residual.backward"));
  CHECK(said_to_another_batch(Stack{Residual{update::Nesterov{}, mixture}, 2}) == refused("Stack.backward"));
  CHECK(said_to_another_batch(mixture) == refused("NoResidual.backward"));
  CHECK(said_to_another_batch(OneExpert{Linear{.model_dim = kDim}}) == refused("NoResidual.backward"));
  // backward throws before it adds to the gradients of later layers.
  CHECK(said_to_another_batch(Chain{Residual{update::HeavyBall{}, mixture}, Linear{.model_dim = kDim}}) ==
        refused("Chain.backward"));

  Cpu::Context ctx(1);
  auto p = support::pass<double>(ctx, mixture, kItems);
  Saved<std::remove_const_t<decltype(mixture)>, double, Cpu> saved;
  mixture.forward(ctx, p.params.branch, p.x, p.y, saved, {});
  p.x(0, 0) += 1;
  ExtraGrad<std::remove_const_t<decltype(mixture)>, double, Cpu> unused{};
  const auto backward = [&] {
    mixture.backward(ctx, p.params.branch, p.x, saved, p.dy, p.dx, p.grads.branch, {}, unused);
  };
  CHECK(message_of(backward) == refused("Mixture.backward"));
  p.x(0, 0) -= 1;
  mixture.forward(ctx, p.params.branch, p.x, p.y, saved, {});
  CHECK(message_of(backward) == "no ArgumentError");
}

TEST_CASE("BatchStamp: saved values of another shape throw") {
  Cpu::Context ctx(1);
  const Tensor<float, 2, Cpu> x(7, 5), fewer(3, 5), wider(7, 6);
  const Tensor<Index, 1, Cpu> ids(7);
  BatchStamp stamp;
  const auto said = [&](const auto& seen) { return message_of([&] { stamp.expect_same("f", seen.view()); }); };
  CHECK(said(x) == "f: saved: x of forward: expected [7, 5], got [0, 0]");
  stamp.take(x.view());
  CHECK(said(fewer) == "f: saved: x of forward: expected [3, 5], got [7, 5]");
  CHECK(said(wider) == "f: saved: x of forward: expected [7, 6], got [7, 5]");
  CHECK(said(ids) == "f: saved: x of forward: expected [7, 1], got [7, 5]");
}

#ifndef NDEBUG
TEST_CASE("BatchStamp: covers every value and its position, not the address") {
  Cpu::Context ctx(1);
  for (const Index columns : {1, 2, 5, 8}) {
    auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 3, columns);
    BatchStamp stamp;
    CHECK_THROWS_AS(stamp.expect_same("f", std::as_const(x).view()), ArgumentError);  // nothing was recorded
    stamp.take(std::as_const(x).view());
    auto moved = zeros_like(ctx, x);
    copy(ctx, x, moved.view());
    stamp.expect_same("f", std::as_const(moved).view());
    for (Index i = 0; i < x.size(); ++i) {
      moved.data()[i] += 1;
      CHECK_THROWS_AS(stamp.expect_same("f", std::as_const(moved).view()), ArgumentError);
      moved.data()[i] = x.data()[i];
      if (i == 0) continue;
      std::swap(moved.data()[i - 1], moved.data()[i]);
      CHECK_THROWS_AS(stamp.expect_same("f", std::as_const(moved).view()), ArgumentError);
      std::swap(moved.data()[i - 1], moved.data()[i]);
    }
    CHECK_THROWS_AS(stamp.expect_same("f", std::as_const(moved).view().rows(0, 2)), ArgumentError);
  }
}
#endif
