#include "gatefold/layer/post_norm.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/rms_norm.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto layer() {
  return Residual{update::HeavyBall{},
                  Mixture{SoftmaxTopK{.scores = {.experts = 3}}, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}}};
}

}  // namespace

TEST_CASE("PostNorm (1): equals the layer, then the norm") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, PostNorm{layer(), LayerNorm{.epsilon = 0.1}}, 9);
  fill_uniform(ctx, Seed{5}, -2, 2, p.params.norm.expert.gain);
  fill_uniform(ctx, Seed{6}, -2, 2, p.params.norm.expert.bias);
  fill_uniform(ctx, Seed{7}, -1, 1, p.carry.p);
  auto first = pass<double>(ctx, layer(), 9);
  auto second = pass<double>(ctx, OneExpert{LayerNorm{.model_dim = 4, .epsilon = 0.1}}, 9);
  copy(ctx, p.x, first.x.view());
  copy(ctx, p.dy, second.dy.view());
  copy_pack(ctx, p.carry, first.carry);
  copy_pack(ctx, p.params.layer, first.params);
  copy_pack(ctx, p.params.norm, second.params.branch);
  p.forward();
  p.backward();
  first.forward();
  copy(ctx, first.y, second.x.view());
  second.forward();
  second.backward();
  copy(ctx, second.dx, first.dy.view());
  first.backward();
  CHECK(same_bits(values(p.y, p.carry, p.dx, p.grads, p.dcarry),
                  values(second.y, first.carry, first.dx, first.grads, second.grads, first.dcarry)));
}

TEST_CASE("PostNorm: a norm without dimension takes the layer's dimension") {
  Cpu::Context ctx(1);
  CHECK(PostNorm{layer(), RmsNorm{}}.init<float, Cpu>(ctx, Seed{1}).norm.expert.gain.size() == 4);
  const PostNorm conflict{layer(), RmsNorm{.model_dim = 5}};
  CHECK(message_of([&] { (void)conflict.init<float, Cpu>(ctx, Seed{1}); }) ==
        "RmsNorm: model_dim: expected 4 (the width of the branch), got 5");
}

TEST_CASE("PostNorm: gradients and conformance with a carry, either norm") {
  const auto one = check::conformance<Cpu, double>(PostNorm{layer(), LayerNorm{}}, {.items_are_independent = true});
  CHECK_MESSAGE(one, one.str());
  const auto two =
      check::conformance<Cpu, double>(Stack{PostNorm{layer(), RmsNorm{}}, 2}, {.items_are_independent = true});
  CHECK_MESSAGE(two, two.str());
}

TEST_CASE("PostNorm: returns the trace if it wraps a Block's attention") {
  Cpu::Context ctx(1);
  const PostNorm attention{Residual{update::Plain{}, Attention{.model_dim = 4, .heads = 2}}, LayerNorm{}};
  const Mixture mixture{AttentionAware<SoftmaxTopK>{.scores = {.experts = 3}}, Linear{.model_dim = 4}};
  const auto report =
      check::gradients(ctx, Block{attention, PostNorm{Residual{update::Plain{}, mixture}, LayerNorm{}}});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("PostNorm: wrong shapes, or a pass without begin(), throw") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, PostNorm{layer(), LayerNorm{}}, 5);
  p.forward();
  CHECK(message_of([&] { p.forward(); }).find("a carry that begin() has reset for this pass") != std::string::npos);
  auto q = pass<float>(ctx, PostNorm{layer(), LayerNorm{}}, 5);
  q.x.resize(5, 3);
  CHECK(message_of([&] { q.forward(); }) == "PostNorm.forward: x: expected [?, 4], got [5, 3]");
  auto r = pass<float>(ctx, PostNorm{layer(), LayerNorm{}}, 5);
  r.params.norm.expert.gain.resize(1, 3);
  CHECK(message_of([&] { r.forward(); }) == "LayerNorm: params.gain: expected [1, 4], got [1, 3]");
  CHECK(r.untouched());
}
