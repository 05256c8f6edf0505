#include <doctest/doctest.h>

#include <algorithm>
#include <string>
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
#include "gatefold/layer/per_token.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/update/plain.hpp"

using namespace gatefold;

// Tests that backward throws before it writes anything, if the gradients do not fit the model.

namespace {

constexpr Index kItems = 6, kDim = 4;

auto mixture(Index experts) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 1}}, Linear{.model_dim = kDim}};
}
auto residual(Index experts) { return Residual{update::Plain{}, mixture(experts)}; }

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// A pass of a layer that is ready for backward.
template <class L>
struct Pass {
  using Params = gatefold::Params<L, double, Cpu>;
  Cpu::Context ctx{1};
  L layer;
  Params params;
  Saved<L, double, Cpu> saved;
  Carry<L, double, Cpu> carry;
  Tensor<double, 2, Cpu> x, y, dx;
  explicit Pass(const L& of)
      : layer(of),
        params(init_params<double, Cpu>(layer, ctx, Seed{1})),
        x(kItems, of.in_dim()),
        y(kItems, of.out_dim()),
        dx(kItems, of.in_dim()) {
    fill_normal(ctx, Seed{2}, 1, x);
    layer.begin(ctx, params, kItems, carry);
    layer.forward(ctx, params, x, carry, y, saved);
  }
  /// Returns the error message of backward for these gradients, and checks that backward wrote nothing.
  std::string refusal(Params& grads) {
    fill(ctx, dx.view(), 7);
    const std::string message = message_of([&] { backward(layer, ctx, params, x, saved, y, carry, dx, grads); });
    CHECK(std::all_of(dx.data(), dx.data() + dx.size(), [](double v) { return v == 7; }));
    for_each_tensor(
        [&](const Name&, const auto& t) {
          CHECK(std::all_of(t.data(), t.data() + t.size(), [](double v) { return v == 0; }));
        },
        grads);
    return message;
  }
  /// @param other  a layer of the same type with other sizes
  /// @param what   the message about its gradients
  void expect_refused(const L& other, const std::string& what) {
    auto grads = zeros_like(ctx, init_params<double, Cpu>(other, ctx, Seed{1}));
    CHECK(refusal(grads) == what);
    Params none;
    CHECK(refusal(none).find(": expected") != std::string::npos);
    auto fitting = zeros_like(ctx, params);
    CHECK(message_of([&] { backward(layer, ctx, params, x, saved, y, carry, dx, fitting); }) == "nothing thrown");
    CHECK(std::any_of(dx.data(), dx.data() + dx.size(), [](double v) { return v != 7; }));
    // Now both parameters and gradients are those of another model.
    auto others = init_params<double, Cpu>(other, ctx, Seed{1});
    std::swap(others, params);
    CHECK(refusal(grads).find("expected") != std::string::npos);
    std::swap(others, params);
  }
};

}  // namespace

TEST_CASE("layers: gradients of another model are refused") {
  Pass{Stack{residual(3), 2}}.expect_refused(
      Stack{residual(2), 2}, "Stack.backward: grads.layers.0.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
  Pass{Stack{residual(3), 2}}.expect_refused(Stack{residual(3), 1},
                                             "Stack.backward: grads.layers.size(): expected 2, got 1");
  Pass{residual(3)}.expect_refused(residual(4),
                                   "Residual.backward: grads.branch.gate.scores.weight: expected [4, 3], got [4, 4]");
  Pass{NoResidual{mixture(3)}}.expect_refused(
      NoResidual{mixture(2)}, "NoResidual.backward: grads.gate.scores.weight: expected [4, 3], got [4, 2]");
  Pass{Chain{residual(3), residual(3)}}.expect_refused(
      Chain{residual(3), residual(2)},
      "Chain.backward: grads.layers.1.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
  Pass{PerToken{2, residual(3)}}.expect_refused(
      PerToken{2, residual(2)}, "PerToken.backward: grads.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
  const auto block = [](Index experts) {
    return Block{Residual{update::Plain{}, Attention{.model_dim = kDim}}, residual(experts)};
  };
  Pass{block(3)}.expect_refused(block(2),
                                "Block.backward: grads.layer.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
}

TEST_CASE("branches: gradients of another model are refused") {
  const auto expect_refused = [](const auto& branch, const auto& other, const std::string& what) {
    using L = std::remove_cvref_t<decltype(branch)>;
    Cpu::Context ctx(1);
    const auto params = init_params<double, Cpu>(branch, ctx, Seed{1});
    Tensor<double, 2, Cpu> x(kItems, kDim), u(kItems, kDim), dx(kItems, kDim);
    fill_normal(ctx, Seed{2}, 1, x);
    fill(ctx, dx.view(), 7);
    Saved<L, double, Cpu> saved;
    ExtraGrad<L, double, Cpu> dextra{};
    branch.forward(ctx, params, x, u, saved, {});
    auto grads = zeros_like(ctx, init_params<double, Cpu>(other, ctx, Seed{1}));
    CHECK(message_of([&] { branch.backward(ctx, params, x, saved, u, dx, grads, {}, dextra); }) == what);
    CHECK(std::all_of(dx.data(), dx.data() + dx.size(), [](double v) { return v == 7; }));
    auto fitting = zeros_like(ctx, params);
    CHECK(message_of([&] { branch.backward(ctx, params, x, saved, u, dx, fitting, {}, dextra); }) == "nothing thrown");
  };
  expect_refused(mixture(3), mixture(2), "Mixture.backward: grads.gate.scores.weight: expected [4, 3], got [4, 2]");
  expect_refused(PreNorm{LayerNorm{}, mixture(3)}, PreNorm{LayerNorm{}, mixture(2)},
                 "PreNorm.backward: grads.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
  expect_refused(WithShared{mixture(3), Linear{.model_dim = kDim}}, WithShared{mixture(2), Linear{.model_dim = kDim}},
                 "WithShared.backward: grads.branch.gate.scores.weight: expected [4, 3], got [4, 2]");
  expect_refused(OneExpert{Linear{.model_dim = kDim}}, OneExpert{Linear{.model_dim = kDim, .bias = false}},
                 "OneExpert.backward: grads.bias: expected [1, 4], got [1, 0]");
  expect_refused(Attention{.model_dim = kDim}, Attention{.model_dim = 2},
                 "Attention.backward: grads.query: expected [4, 4], got [2, 2]");
}
