#include "gatefold/layer/block.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/mixing/attention_posterior.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto attention() { return Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 4, .heads = 2}}}; }
auto feed_forward(Index width = 4) {
  return Residual{
      update::HeavyBall{.mu = 0.6, .gamma = 1.25},
      PreNorm{LayerNorm{},
              Mixture{WithAuxiliary<SoftmaxTopK, Balance>{
                          .scores = {.experts = 3}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.5}}},
                      Mlp<Gelu>{.model_dim = width, .hidden_dim = 5}}}};
}

/// Changes a run of Block{attention(), layer} with change(run), and calls forward. Checks that forward writes nothing.
/// Returns the message of its ArgumentError.
template <class L>
std::string message_before_writes(Cpu::Context& ctx, const L& layer, auto&& change) {
  auto p = pass<float>(ctx, Block{attention(), layer}, 8);
  fill(ctx, p.carry.p.view(), 3);
  change(p);
  const auto carried = values(p.carry);
  const auto text = message_of([&] { p.forward(); });
  CHECK(p.untouched());
  CHECK(values(p.carry) == carried);
  CHECK(p.saved.between.size() == 0);
  return text;
}

}  // namespace

TEST_CASE("Block (1): equals attention, then the layer, bit for bit") {
  Cpu::Context ctx(1);
  auto block = pass<float>(ctx, Block{attention(), feed_forward()}, 12);
  auto first = pass<float>(ctx, attention(), 12);
  auto second = pass<float>(ctx, feed_forward(), 12);
  fill_uniform(ctx, Seed{7}, -1, 1, block.carry.p);
  fill_uniform(ctx, Seed{8}, -1, 1, block.dcarry.p);
  block.extra.attention.length = first.extra.length = 4;
  copy_pack(ctx, block.params.attention, first.params);
  copy_pack(ctx, block.params.layer, second.params);
  copy_pack(ctx, block.carry, second.carry);
  copy_pack(ctx, block.dcarry, second.dcarry);
  copy(ctx, block.x, first.x.view());
  copy(ctx, block.dy, second.dy.view());
  block.forward();
  block.backward();
  first.forward();
  copy(ctx, first.y, second.x.view());
  second.forward();
  second.backward();
  copy(ctx, second.dx, first.dy.view());
  first.backward();
  CHECK(same_bits(values(block.y, block.carry, block.dx, block.dcarry),
                  values(second.y, second.carry, first.dx, second.dcarry)));
  CHECK(same_bits(values(block.grads), values(first.grads, second.grads)));
}

TEST_CASE("Block: extra inputs reach attention and layer in every block") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Stack{Block{attention(), feed_forward()}, 2}, 8);
  const std::vector<float> mask{1, 1, 1, 0, 1, 1, 0, 0};
  p.extra.attention = {.length = 4, .valid = mask};
  auto all = p.extra;
  p.extra.layer.valid = mask;
  p.forward();
  Tensor<float, 2, Cpu> inferred(8, 4);
  p.layer.begin(ctx, p.params, 8, p.carry);
  infer<float, Cpu>(p.layer, ctx, p.params, p.x, p.carry, inferred, p.extra);
  CHECK(same_bits(values(inferred), values(p.y)));
  std::vector<double> masked, unmasked;
  for (const auto& saved : p.saved.layers) {
    CHECK(saved.attention.calls[0].branch.length == 4);
    masked.push_back(saved.layer.calls[0].branch.gate.auxiliary(0));
  }
  p.extra = all;
  p.layer.begin(ctx, p.params, 8, p.carry);
  p.forward();
  for (const auto& saved : p.saved.layers) unmasked.push_back(saved.layer.calls[0].branch.gate.auxiliary(0));
  for (std::size_t l = 0; l < 2; ++l) CHECK(masked[l] != unmasked[l]);
  CHECK(!same_bits(values(inferred), values(p.y)));
}

TEST_CASE("Block: without_auxiliary switches off the gate's auxiliary losses") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Block{attention(), feed_forward()}, 6);
  p.extra = without_auxiliary(p.extra);
  p.forward();
  CHECK(p.saved.layer.calls[0].branch.gate.auxiliary.size() == 0);
}

TEST_CASE("Block: has the layer's carry; tensor names contain the part") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Block{attention(), feed_forward()}, 3);
  CHECK(values(p.carry).size() == 12);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
  CHECK(names[0] == "attention.branch.norm.gain");
  CHECK(names.back() == "layer.branch.branch.expert.down_bias");
}

TEST_CASE("Block: wrong widths or shapes throw before any write") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] {
          (void)Block{attention(), feed_forward(6)}.init<float, Cpu>(ctx, {});
        }) == "Block: layer.in_dim: expected 4 (the out_dim of attention), got 6");
  const auto message = [&](auto&& change) { return message_before_writes(ctx, feed_forward(), change); };
  CHECK(message([](auto& p) { p.x.resize(8, 3); }) == "Block.forward: x: expected [?, 4], got [8, 3]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 7, 4); }) ==
        "Block.forward: y: expected [8, 4], got [7, 4]");
  CHECK(message([](auto& p) { p.extra.attention.length = 3; }) ==
        "Attention.forward: sequence.length: expected a divisor of the number of items 8, got 3");
  CHECK(message([](auto& p) { p.params.attention.branch.branch.key.resize(4, 3); }) ==
        "Attention: params.key: expected [4, 4], got [4, 3]");
  CHECK(message([](auto& p) { p.params.layer.branch.branch.expert.up.resize(3, 4, 4); }) ==
        "Mlp: params.up: expected [3, 4, 5], got [3, 4, 4]");
  CHECK(message([](auto& p) { p.carry.p = constant_tensor<float>(p.ctx, 1, 8, 3); }) ==
        "HeavyBall: carry.p: expected [8, 4], got [8, 3]");
}

TEST_CASE("Block: checks a layer that reads the trace before any write") {
  Cpu::Context ctx(1);
  const ComposedGate<LinearScores, AttentionPosterior, TopK> gate{.scores = {.experts = 3}, .selection = {.k = 2}};
  const Mlp<Gelu> expert{.model_dim = 4, .hidden_dim = 5};
  const Residual aware{update::HeavyBall{}, PreNorm{LayerNorm{}, Mixture{gate, expert}}};
  const auto message = [&](auto&& change) { return message_before_writes(ctx, aware, change); };
  CHECK(message([](auto& p) { p.params.layer.branch.branch.expert.up.resize(3, 4, 4); }) ==
        "Mlp: params.up: expected [3, 4, 5], got [3, 4, 4]");
  CHECK(message([](auto& p) { p.carry.p = constant_tensor<float>(p.ctx, 1, 8, 3); }) ==
        "HeavyBall: carry.p: expected [8, 4], got [8, 3]");
  const std::vector<float> mask(7);
  CHECK(message([&](auto& p) { p.extra.layer.mixing.valid = mask; }) ==
        "AttentionPosterior: extra.valid: expected [8], got [7]");
}

TEST_CASE("Block: gradients and conformance, with sequences and padding") {
  const auto report = check::conformance<Cpu, double>(Block{attention(), feed_forward()}, {.gradients = {.items = 6}});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  const Stack stack{Block{attention(), feed_forward()}, 2};
  const std::vector<double> mask{1, 1, 0, 1, 1, 1};
  Extra<decltype(stack), double, Cpu> extra;
  extra.attention = {.length = 3, .valid = mask};
  extra.layer.valid = mask;
  const auto stacked = check::gradients(ctx, stack, {.items = 6}, extra);
  CHECK_MESSAGE(stacked, stacked.str());
}
