#include "gatefold/layer/per_token.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto stack() {
  return Stack{Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                     Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}}},
               2};
}

}  // namespace

TEST_CASE("PerToken (1): equals the inner layer on the tokens") {
  Cpu::Context ctx(1);
  auto outer = pass<float>(ctx, PerToken{3, stack()}, 7);
  auto inner = pass<float>(ctx, stack(), 21);
  copy(ctx, outer.x.view().as(21, 4), inner.x.view());
  copy(ctx, outer.dy.view().as(21, 4), inner.dy.view());
  outer.forward();
  inner.forward();
  outer.backward();
  inner.backward();
  CHECK(same_bits(outer.outcome(), inner.outcome()));
  CHECK(outer.carry.tokens.p.extent(0) == 21);
  auto inferred = pass<float>(ctx, PerToken{3, stack()}, 7);
  inferred.infer();
  CHECK(same_bits(values(inferred.y, inferred.carry), values(outer.y, outer.carry)));
}

TEST_CASE("PerToken: an item is `length` tokens wide, in and out") {
  const PerToken layer{3, Linear{.model_dim = 4, .output_dim = 2}};
  CHECK(layer.in_dim() == 12);
  CHECK(layer.out_dim() == 6);
  const auto report = check::conformance<Cpu, double>(layer, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("PerToken: gradients and conformance with a carry and a mixture") {
  const auto report =
      check::conformance<Cpu, double>(PerToken{3, stack()}, {.gradients = {.items = 3}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("PerToken: for_each_mixture visits the mixtures of its layer") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, PerToken{3, stack()}, 2);
  p.forward();
  int mixtures = 0;
  for_each_mixture(p.saved, [&](const auto& m) {
    ++mixtures;
    CHECK(m.plan.items() == 6);
  });
  CHECK(mixtures == 2);
}

TEST_CASE("PerToken: an item is one sequence unless length is set") {
  Cpu::Context ctx(1);
  const Attention attention{.model_dim = 4, .heads = 2, .causal = false};
  auto outer = pass<double>(ctx, PerToken{6, attention}, 2);
  for (const Index length : {0, 6, 3}) {
    CAPTURE(length);
    outer.extra.length = length;
    auto inner = pass<double>(ctx, attention, 12);
    inner.extra.length = length == 0 ? 6 : length;
    copy(ctx, outer.x.view().as(12, 4), inner.x.view());
    copy(ctx, outer.dy.view().as(12, 4), inner.dy.view());
    for (auto* d : {&outer.dx, &inner.dx}) fill(ctx, d->view(), 0);
    set_zero(ctx, outer.grads);
    outer.forward();
    inner.forward();
    outer.backward();
    inner.backward();
    CHECK(same_bits(outer.outcome(), inner.outcome()));
    CHECK(outer.extra.length == length);
    auto inferred = pass<double>(ctx, PerToken{6, attention}, 2);
    inferred.extra.length = length;
    inferred.infer();
    CHECK(same_bits(values(inferred.y), values(outer.y)));
  }
}

TEST_CASE("PerToken: wrong shapes or options throw before any write") {
  Cpu::Context ctx(1);
  const PerToken none{0, Linear{.model_dim = 4}};
  CHECK(message_of([&] { (void)none.init<float, Cpu>(ctx, {}); }) == "PerToken: length: expected at least 1, got 0");
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, PerToken{3, stack()}, 2);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.layer.layers.empty());
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(6, 4); }) == "PerToken.forward: x: expected [?, 12], got [6, 4]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 3, 12); }) ==
        "PerToken.forward: y: expected [2, 12], got [3, 12]");
  CHECK(message([](auto& p) { p.carry.tokens.p.resize(2, 4); }) == "HeavyBall: carry.p: expected [6, 4], got [2, 4]");
  CHECK(message([](auto& p) { p.params.layer.layers[1].branch.expert.up_bias.resize(3, 4); }) ==
        "Mlp: params.up_bias: expected [3, 5], got [3, 4]");
}
