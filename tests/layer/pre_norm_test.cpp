#include "gatefold/layer/pre_norm.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}};
}

}  // namespace

TEST_CASE("PreNorm (1): equals the norm, then the branch") {
  Cpu::Context ctx(1);
  const OneExpert norm{LayerNorm{.model_dim = 4, .epsilon = 0.1}};
  auto p = pass<double>(ctx, PreNorm{LayerNorm{.epsilon = 0.1}, mixture()}, 9);
  fill_uniform(ctx, Seed{5}, -2, 2, p.params.branch.norm.expert.gain);
  fill_uniform(ctx, Seed{6}, -2, 2, p.params.branch.norm.expert.bias);
  p.forward();
  p.backward();
  auto first = pass<double>(ctx, norm, 9);
  auto second = pass<double>(ctx, mixture(), 9);
  copy(ctx, p.x, first.x.view());
  copy_pack(ctx, p.params.branch.norm, first.params.branch);
  copy_pack(ctx, p.params.branch.branch, second.params.branch);
  first.forward();
  copy(ctx, first.y, second.x.view());
  copy(ctx, p.dy, second.dy.view());
  second.forward();
  second.backward();
  copy(ctx, second.dx, first.dy.view());
  first.backward();
  CHECK(same_bits(values(p.y, p.dx, p.grads), values(second.y, first.dx, first.grads, second.grads)));
  CHECK(same_bits(values(p.saved.branch.normed), values(first.y)));
}

TEST_CASE("PreNorm: a step functor equals adding x after the branch") {
  Cpu::Context ctx(1);
  const Stepped u = with_step_at_the_end<double>(ctx, PreNorm{LayerNorm{}, mixture()}, 9);
  CHECK(same_bits(u.after, u.forward));
  CHECK(same_bits(u.after, u.infer));
}

TEST_CASE("PreNorm: a norm without dimension takes the branch's dimension") {
  Cpu::Context ctx(1);
  CHECK(PreNorm{LayerNorm{}, mixture()}.init<float, Cpu>(ctx, Seed{1}).norm.expert.gain.size() == 4);
  const PreNorm conflict{LayerNorm{.model_dim = 5}, mixture()};
  CHECK(message_of([&] { (void)conflict.init<float, Cpu>(ctx, Seed{1}); }) ==
        "LayerNorm: model_dim: expected 4 (the width of the branch), got 5");
}

TEST_CASE("PreNorm: wrong shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, PreNorm{LayerNorm{}, mixture()}, 5);
    change(p);
    const auto text =
        message_of([&] { p.layer.branch.forward(ctx, p.params.branch, p.x, p.y, p.saved.branch, p.extra); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.normed.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(5, 3); }) == "PreNorm.forward: x: expected [?, 4], got [5, 3]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 4, 4); }) ==
        "PreNorm.forward: u: expected [5, 4], got [4, 4]");
  CHECK(message([](auto& p) { p.params.branch.norm.expert.gain.resize(1, 3); }) ==
        "LayerNorm: params.gain: expected [1, 4], got [1, 3]");
  CHECK(message([](auto& p) { p.params.branch.branch.expert.up.resize(3, 4, 4); }) ==
        "Mlp: params.up: expected [3, 4, 5], got [3, 4, 4]");
}

TEST_CASE("PreNorm: passes extra inputs on and returns the branch's trace") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, PreNorm{LayerNorm{}, Attention{.model_dim = 4}}, 6);
  p.extra.length = 3;
  p.forward();
  CHECK(p.saved.branch.branch.length == 3);
  CHECK(p.layer.trace(p.params, p.saved).length == 3);
}

TEST_CASE("PreNorm: gradients and conformance with every kind of branch") {
  const auto around = [](auto branch, bool independent) {
    const auto report =
        check::conformance<Cpu, double>(PreNorm{LayerNorm{}, branch}, {.items_are_independent = independent});
    CHECK_MESSAGE(report, report.str());
  };
  around(mixture(), true);
  around(OneExpert{Linear{.model_dim = 4, .output_dim = 3}}, true);
  around(Attention{.model_dim = 4, .heads = 2}, false);
}
