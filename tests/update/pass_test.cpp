#include "gatefold/update/pass.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/normed_point.hpp"
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/post_norm.hpp"
#include "gatefold/layer/recompute.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/adam.hpp"
#include "gatefold/update/complex_momentum.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::message_of;
using support::values;

namespace {

constexpr Index kItems = 6, kDim = 4;
const char* const forgotten =
    "Residual.forward: carry: expected a carry that begin() has reset for this pass, got the carry that the previous "
    "pass wrote";
const char* const forgotten_infer =
    "Residual.infer: carry: expected a carry that begin() has reset for this pass, got the carry that the previous "
    "pass wrote";

template <class R>
auto residual(R rule) {
  return Residual{rule, OneExpert{Linear{.model_dim = kDim}}};
}

/// Checks that a second pass without begin is refused and writes nothing, and that a second pass with begin repeats the
/// first one.
template <class L>
void check_second_pass(const L& layer) {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, layer, kItems);
  p.forward();
  const auto first = values(p.y, p.carry);
  CHECK(message_of([&] { p.forward(); }) == forgotten);
  CHECK(message_of([&] { p.infer(); }) == forgotten_infer);
  CHECK(support::same_bits(values(p.y, p.carry), first));
  p.layer.begin(ctx, p.params, kItems, p.carry);
  p.forward();
  CHECK(support::same_bits(values(p.y, p.carry), first));

  p.layer.begin(ctx, p.params, kItems, p.carry);
  p.infer();
  CHECK(support::same_bits(values(p.y, p.carry), first));
  CHECK(message_of([&] { p.infer(); }) == forgotten_infer);
  CHECK(message_of([&] { p.forward(); }) == forgotten);
  auto other = uniform_tensor<float>(ctx, Seed{8}, 1, kItems, layer.in_dim());
  std::swap(p.x, other);
  CHECK(message_of([&] { p.infer(); }) == forgotten_infer);
  CHECK(support::same_bits(values(p.y, p.carry), first));
  // A second pass is also refused if it writes its results elsewhere.
  auto elsewhere = support::pass<float>(ctx, layer, kItems);
  const auto to_elsewhere = [&](const auto& x) {
    return std::pair{
        message_of([&] { p.layer.forward(ctx, p.params, x, p.carry, elsewhere.y, elsewhere.saved, p.extra); }),
        message_of([&] { infer<float, Cpu>(p.layer, ctx, p.params, x, p.carry, elsewhere.y, p.extra); })};
  };
  for (const auto& [forward, inferred] : {to_elsewhere(p.x), to_elsewhere(other)}) {
    CHECK(forward == forgotten);
    CHECK(inferred == forgotten_infer);
  }
  CHECK(elsewhere.untouched());
  p.layer.begin(ctx, p.params, kItems, p.carry);
  p.forward();
  CHECK(to_elsewhere(p.x) == std::pair{std::string(forgotten), std::string(forgotten_infer)});
  p.layer.begin(ctx, p.params, kItems, p.carry);
  p.infer();
}

}  // namespace

TEST_CASE("pass: a second pass without begin throws for every rule") {
  check_second_pass(residual(update::HeavyBall{}));
  check_second_pass(residual(update::Adam{.epsilon = 0.1}));
  check_second_pass(residual(update::ComplexMomentum{}));
  check_second_pass(residual(update::First{update::Adam{.epsilon = 0.1}, update::HeavyBall{}}));
  check_second_pass(Stack{residual(update::HeavyBall{}), 3});
  check_second_pass(Chain{LayerNorm{.model_dim = kDim}, residual(update::HeavyBall{}), LayerNorm{.model_dim = kDim}});
  check_second_pass(Chain{residual(update::HeavyBall{}), Stack{residual(update::HeavyBall{}), 2}});
  check_second_pass(PerToken{3, residual(update::HeavyBall{})});
  check_second_pass(
      Block{Residual{update::Plain{}, Attention{.model_dim = kDim, .heads = 2}}, residual(update::HeavyBall{})});
}

TEST_CASE("pass: a rule without a carry needs no begin") {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, residual(update::Plain{}), kItems);
  p.forward();
  const auto first = values(p.y);
  p.forward();
  p.infer();
  p.infer();
  CHECK(support::same_bits(values(p.y), first));
}

TEST_CASE("pass: may use the same parameters more than once") {
  Cpu::Context ctx(1);
  auto p = support::pass<double>(ctx, residual(update::HeavyBall{}), kItems);
  // Each pass saves its values in its own `saved`.
  Saved<decltype(p.layer), double, Cpu> second, third;
  Tensor<double, 2, Cpu> y2(kItems, kDim), y3(kItems, kDim);
  p.forward();
  p.layer.forward(ctx, p.params, p.y, p.carry, y2, second);
  p.layer.forward(ctx, p.params, y2, p.carry, y3, third);
  const auto expected = values(y3);
  // Two buffers are used in turn.
  p.layer.begin(ctx, p.params, kItems, p.carry);
  Tensor<double, 2, Cpu> even(kItems, kDim), odd(kItems, kDim);
  p.layer.infer(ctx, p.params, p.x, p.carry, even);
  p.layer.infer(ctx, p.params, even, p.carry, odd);
  p.layer.infer(ctx, p.params, odd, p.carry, even);
  CHECK(support::same_bits(values(even), expected));
}

TEST_CASE("pass: after a copy between layers, forward needs follow_pass") {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, residual(update::HeavyBall{}), kItems);
  Saved<decltype(p.layer), float, Cpu> second;
  Tensor<float, 2, Cpu> between(kItems, kDim), y(kItems, kDim);
  p.forward();
  copy(ctx, p.y, between.view());
  const auto go_on = [&] { p.layer.forward(ctx, p.params, between, p.carry, y, second); };
  CHECK(message_of(go_on) == forgotten);
  update::follow_pass(p.carry, p.y.data(), between.data());
  CHECK(message_of(go_on) == "no ArgumentError");
}

TEST_CASE("pass: layers with shared parameters may contain other parts") {
  Cpu::Context ctx(1);
  const auto shared = [&](const auto& layer) {
    for (const bool infer : {true, false}) {
      auto p = support::pass<float>(ctx, layer, kItems);
      Tensor<float, 2, Cpu> even(kItems, layer.in_dim()), odd(kItems, layer.in_dim());
      const auto go = [&](const auto& x, auto& y) {
        if (infer) return p.layer.infer(ctx, p.params, x, p.carry, y);
        p.layer.forward(ctx, p.params, x, p.carry, y, p.saved);
      };
      go(p.x, even);
      for (int l = 0; l < 2; ++l) {
        go(even, odd);
        go(odd, even);
      }
      CHECK(message_of([&] { go(p.x, even); }) == (infer ? forgotten_infer : forgotten));
    }
  };
  shared(Block{Residual{update::Plain{}, Attention{.model_dim = kDim, .heads = 2}}, residual(update::HeavyBall{})});
  shared(PostNorm{residual(update::HeavyBall{}), LayerNorm{}});
  shared(NormedPoint{LayerNorm{}, residual(update::HeavyBall{})});
  shared(Chain{LayerNorm{.model_dim = kDim}, residual(update::HeavyBall{}), LayerNorm{.model_dim = kDim}});
  shared(Stack{Chain{LayerNorm{.model_dim = kDim}, residual(update::HeavyBall{})}, 2});
}

namespace {

const char* const not_zeroed =
    "backward: dcarry: expected zeros, or the adjoint of the carry, got the carry that forward wrote";
const char* const used_before =
    "backward: dcarry: expected zeros at the start of a backward pass, or the adjoint of the carry, got the adjoint "
    "that the last backward pass wrote";

/// Checks two errors that are found before anything is written: passing forward's carry as dcarry, and using a dcarry
/// for two backward passes.
template <class L>
void check_dcarry(const L& layer) {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, layer, kItems);
  p.forward();
  const auto before = values(p.dx, p.grads, p.carry);
  std::swap(p.carry, p.dcarry);
  CHECK(message_of([&] { p.backward(); }) == not_zeroed);
  std::swap(p.carry, p.dcarry);
  CHECK(support::same_bits(values(p.dx, p.grads, p.carry), before));

  p.backward();
  const auto after = values(p.dx, p.grads, p.dcarry);
  CHECK(message_of([&] { p.backward(); }) == used_before);
  // dcarry is also refused after forward of the next batch, which writes the same `saved`.
  auto other = uniform_tensor<float>(ctx, Seed{8}, 1, kItems, layer.in_dim());
  std::swap(p.x, other);
  p.layer.begin(ctx, p.params, kItems, p.carry);
  p.forward();
  CHECK(message_of([&] { p.backward(); }) == used_before);
  CHECK(support::same_bits(values(p.dx, p.grads, p.dcarry), after));

  // A dcarry can be used again after it was filled with zeros or other values in any way.
  for_each_tensor([](const Name&, auto& t) { std::fill(t.data(), t.data() + t.size(), 0.0f); }, p.dcarry);
  p.backward();
  for_each_tensor([](const Name&, auto& t) { std::fill(t.data(), t.data() + t.size(), 0.5f); }, p.dcarry);
  p.backward();
  set_zero(ctx, p.carry);
  std::swap(p.carry, p.dcarry);
  p.backward();
}

}  // namespace

TEST_CASE("dcarry: a carry from forward or an earlier backward throws") {
  check_dcarry(residual(update::HeavyBall{}));
  check_dcarry(residual(update::Adam{.epsilon = 0.1}));
  check_dcarry(residual(update::ComplexMomentum{}));
  check_dcarry(residual(update::First{update::Adam{.epsilon = 0.1}, update::HeavyBall{}}));
  check_dcarry(Stack{residual(update::HeavyBall{}), 3});
  check_dcarry(Chain{LayerNorm{.model_dim = kDim}, residual(update::HeavyBall{}), LayerNorm{.model_dim = kDim}});
  check_dcarry(Chain{Stack{residual(update::HeavyBall{}), 2}, Linear{.model_dim = kDim}});
  check_dcarry(Recompute{residual(update::HeavyBall{})});
  check_dcarry(Stack{Recompute{residual(update::HeavyBall{})}, 3});
  check_dcarry(PerToken{3, residual(update::HeavyBall{})});
  check_dcarry(
      Block{Residual{update::Plain{}, Attention{.model_dim = kDim, .heads = 2}}, residual(update::HeavyBall{})});
}

TEST_CASE("dcarry: shared, repeated or separate layers may use one dcarry") {
  Cpu::Context ctx(1);
  auto p = support::pass<double>(ctx, residual(update::HeavyBall{}), kItems);
  using L = decltype(p.layer);
  constexpr int depth = 3;
  // The layers have one set of parameters or a set each. Between two layers, backward passes dx on in a copy or in the
  // same memory. If `again`, forward of a layer runs again before its backward.
  for (const bool shared : {true, false})
    for (const bool copied : {true, false})
      for (const bool again : {true, false}) {
        if (shared && copied && again) continue;  // looks the same as a second backward pass
        std::vector<Params<L, double, Cpu>> params;
        for (std::uint64_t l = 0; l < depth; ++l) params.push_back(p.layer.template init<double, Cpu>(ctx, Seed{l}));
        const auto of = [&](int l) -> auto& { return params[shared ? 0 : static_cast<std::size_t>(l)]; };
        std::vector<Saved<L, double, Cpu>> saved(depth);
        std::vector<Tensor<double, 2, Cpu>> x;
        x.push_back(uniform_tensor<double>(ctx, Seed{9}, 1, kItems, kDim));
        std::vector<Carry<L, double, Cpu>> before(depth);
        p.layer.begin(ctx, of(0), kItems, p.carry);
        for (int l = 0; l < depth; ++l) {
          const auto at = static_cast<std::size_t>(l);
          p.layer.begin(ctx, of(l), kItems, before[at]);
          copy_pack(ctx, p.carry, before[at]);
          x.emplace_back(kItems, kDim);
          p.layer.forward(ctx, of(l), x[at], p.carry, x[at + 1], saved[at]);
        }
        auto dy = uniform_tensor<double>(ctx, Seed{7}, 1, kItems, kDim);
        Tensor<double, 2, Cpu> dx(kItems, kDim);
        p.layer.begin(ctx, of(0), kItems, p.dcarry);
        for (int l = depth; l-- > 0;) {
          const auto at = static_cast<std::size_t>(l);
          Saved<L, double, Cpu>& kept = again ? saved[0] : saved[at];
          if (again) p.layer.forward(ctx, of(l), x[at], before[at], x[at + 1], kept);
          fill(ctx, dx, 0);
          CHECK(message_of([&] { backward(p.layer, ctx, of(l), x[at], kept, dy, p.dcarry, dx, p.grads); }) ==
                "no ArgumentError");
          if (copied)
            copy(ctx, dx, dy.view());
          else
            std::swap(dx, dy);
        }
      }
}

TEST_CASE("begin: the error names the wrong count of items") {
  Cpu::Context ctx(1);
  auto p = support::pass<float>(ctx, residual(update::HeavyBall{}), kItems);
  CHECK(message_of([&] { p.layer.begin(ctx, p.params, -1, p.carry); }) ==
        "Residual.begin: items: expected at least 0, got -1");
}
