// Compares gates (under the names that papers give them), scores and auxiliary losses on CUDA with the naive backend.
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Checks 5 experts without padding, and 40 experts (more than a warp has lanes) with padding.
template <class T = double, class G>
void expect_same_everywhere(const G& gate, Expected expected = {}, Index width = 5) {
  Backends on;
  SUBCASE("5 experts") { expect_same_gate<T>(on, with_experts(gate, 5), width, {.expected = expected}); }
  SUBCASE("40 experts, padding") {
    expect_same_gate<T>(on, with_experts(gate, 40), width,
                        {.items = 24, .padding = true, .seed = {2}, .expected = expected});
  }
}

/// Returns the gate with K picks of each item, if it has such an option.
template <class G>
G with_picks(G gate, Index k) {
  if constexpr (requires { gate.selection.selection.k; }) {
    gate.selection.selection.k = k;
  } else if constexpr (requires { gate.selection.k; }) {
    gate.selection.k = k;
  } else if constexpr (requires { gate.k = k; }) {
    gate.k = k;
  }
  return gate;
}
const std::vector<std::string> gradients{"dx", "grads"};

/// The results that are 0 in some of the cases below.
struct Zeros {
  std::vector<std::string> always{}, one_expert = gradients, all_experts = always;
};
/// Checks batches without items and with one item; gates with one expert, with one expert more than a warp has lanes,
/// with many experts, and with all experts for every item; and items that are large, equal, NaN or infinite.
template <class G>
void expect_same_at_edges(const G& gate, const Zeros& zeros = {}) {
  Backends on;
  const auto run = [&](Index experts, Index picks, const Case& c) {
    expect_same_gate<double>(on, with_picks(with_experts(gate, experts), picks), 4, c);
  };
  SUBCASE("no item") { run(5, 2, {.items = 0, .expected = {.zeros = {"grads", "saved", "plan", "inferred"}}}); }
  SUBCASE("one item") { run(5, 2, {.items = 1, .expected = {.zeros = zeros.always}}); }
  SUBCASE("one expert") { run(1, 1, {.items = 9, .expected = {.zeros = zeros.one_expert}}); }
  SUBCASE("33 experts") { run(33, 2, {.items = 9, .expected = {.zeros = zeros.always}}); }
  SUBCASE("257 experts") { run(257, 3, {.items = 5, .expected = {.zeros = zeros.always}}); }
  SUBCASE("all experts") { run(4, 4, {.items = 11, .expected = {.zeros = zeros.all_experts}}); }
  SUBCASE("large items") {
    run(5, 2, {.items = 12, .spread = 1000, .expected = {.scale = 100, .zeros = zeros.always}});
  }
  SUBCASE("equal items") {
    const auto edit = [](Index, Index d, double) { return 0.3 - 0.2 * static_cast<double>(d); };
    run(5, 2, {.items = 12, .edit = edit, .expected = {.zeros = zeros.always}});
  }
  SUBCASE("NaN and infinity") {
    const auto edit = [](Index n, Index d, double v) {
      return n == 2 && d == 1 ? NAN : n == 5 && d == 0 ? INFINITY : v;
    };
    run(5, 2, {.items = 9, .edit = edit, .expected = {.zeros = zeros.always, .nan = true}});
  }
}

/// A gate with all auxiliary losses. Each test sets the weight of one loss; the other weights are 0.
using AllLosses = ComposedGate<LinearScores, Independent, NoisyTopK<>, Balance, ZLoss, GShard, Importance, Load>;
template <class LossT>
AllLosses with_loss(const LossT& loss, Index k = 2) {
  AllLosses gate{.selection = {.k = k},
                 .auxiliary = {Balance{.weight = 0}, ZLoss{.weight = 0}, GShard{.weight = 0}, Importance{.weight = 0},
                               Load{.weight = 0}}};
  std::get<LossT>(gate.auxiliary) = loss;
  return gate;
}

}  // namespace

TEST_CASE("SoftmaxTopK: matches the naive backend") { expect_same_everywhere(SoftmaxTopK{}); }
TEST_CASE("SoftmaxTopK, float: matches the naive backend") { expect_same_everywhere<float>(SoftmaxTopK{}); }
TEST_CASE("SoftmaxTopK, not renormalised: matches the naive backend") {
  expect_same_everywhere(SoftmaxTopK{.selection = {.k = 3, .renormalise = false}});
}
TEST_CASE("SoftmaxTopK, edge cases: matches the naive backend") { expect_same_at_edges(SoftmaxTopK{}); }
TEST_CASE("SoftmaxDense: matches the naive backend") { expect_same_everywhere(SoftmaxDense{}); }
TEST_CASE("SoftmaxNoisyTop1: matches the naive backend") { expect_same_everywhere(SoftmaxNoisyTop1{}); }
TEST_CASE("SoftmaxNoisyTop1, noisy weights: matches the naive backend") {
  expect_same_everywhere(SoftmaxNoisyTop1{.selection = NoisyTop1<>::reference()});
}
TEST_CASE("PatchNoisyTop1: matches the naive backend") {
  expect_same_everywhere(PatchNoisyTop1{.scores = {.length = 3}}, {}, 6);
}
TEST_CASE("SoftmaxNoisyTopK: matches the naive backend") { expect_same_everywhere(SoftmaxNoisyTopK{}); }
TEST_CASE("SoftmaxNoisyTopK, no noise: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, SoftmaxNoisyTopK{.scores = {.experts = 5}}, 4,
                           {.noise = false, .expected = {.zeros = {"grads.selection"}}});
}
TEST_CASE("SoftmaxNoisyTopK, edge cases: matches the naive backend") {
  expect_same_at_edges(SoftmaxNoisyTopK{}, {.one_expert = {"dx", "grads", "saved.4"}});
}
TEST_CASE("SoftmaxNoisyTopK, published: matches the naive backend") {
  expect_same_everywhere(published::shazeer({.experts = 0, .k = 3}));
}
TEST_CASE("SoftmaxNoisyTopK, no auxiliary loss: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, SoftmaxNoisyTopK{.scores = {.experts = 5}}, 4, {.auxiliary = false});
}
TEST_CASE("VMoe: matches the naive backend") { expect_same_everywhere(VMoe{}); }
TEST_CASE("VMoe, float: matches the naive backend") { expect_same_everywhere<float>(VMoe{}); }
TEST_CASE("VMoe, published: matches the naive backend") {
  expect_same_everywhere(published::vmoe({.experts = 0, .k = 2, .factor = 1.05, .group = 8}));
}
TEST_CASE("VMoe, edge cases: matches the naive backend") {
  expect_same_at_edges(VMoe{}, {.one_expert = {"dx", "grads", "saved.4"}});
}
TEST_CASE("Switch: matches the naive backend") { expect_same_everywhere(Switch{}); }
TEST_CASE("Switch, published: matches the naive backend") {
  expect_same_everywhere(published::switch_transformer({.experts = 0}));
}
TEST_CASE("Switch, no jitter: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, Switch{.scores = {.scores = {.experts = 5}}}, 4, {.noise = false});
}
TEST_CASE("GShardTop2: matches the naive backend") { expect_same_everywhere(GShardTop2{}); }
TEST_CASE("GShardTop2, published: matches the naive backend") {
  expect_same_everywhere(published::gshard({.experts = 0}));
}
TEST_CASE("XMoe: matches the naive backend") { expect_same_everywhere(XMoe{}); }
TEST_CASE("XMoe, reference scores: matches the naive backend") {
  expect_same_everywhere(XMoe{.scores = CosineScores::reference()});
}
TEST_CASE("SmoeDropout: matches the naive backend") {
  expect_same_everywhere(SmoeDropout{}, {.zeros = {"grads.scores"}});
}
TEST_CASE("SmoeDropout, k per call: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, with_experts(SmoeDropout{}, 5), 4, {.k = 4, .expected = {.zeros = {"grads.scores"}}});
}
TEST_CASE("SigmoidTopK: matches the naive backend") {
  expect_same_everywhere(SigmoidTopK{}, {.zeros = {"grads.selection.speed"}});
}
TEST_CASE("SigmoidTopK, float: matches the naive backend") {
  expect_same_everywhere<float>(SigmoidTopK{}, {.zeros = {"grads.selection.speed"}});
}
TEST_CASE("SigmoidTopK, sqrt_softplus: matches the naive backend") {
  expect_same_everywhere(SigmoidTopK{.selection = {.score = RouterScore::sqrt_softplus}},
                         {.zeros = {"grads.selection.speed"}});
}
TEST_CASE("SigmoidTopK, published: matches the naive backend") {
  expect_same_everywhere(published::aux_loss_free({.experts = 0, .k = 3}), {.zeros = {"grads.selection.speed"}});
}
TEST_CASE("SigmoidTopK, published, scaled weights: matches the naive backend") {
  expect_same_everywhere(published::deepseek_v3({.experts = 0, .k = 3, .groups = 1, .top_groups = 1}),
                         {.zeros = {"grads.selection.speed"}});
}
TEST_CASE("SigmoidTopK, best groups: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(
      on, with_experts(published::deepseek_v3({.experts = 0, .k = 3, .groups = 4, .top_groups = 2}), 12), 4,
      {.k = 3, .expected = {.zeros = {"grads.selection.speed"}}});
}
TEST_CASE("SigmoidTopK, edge cases: matches the naive backend") {
  expect_same_at_edges(SigmoidTopK{}, {.always = {"grads.selection.speed"}, .all_experts = {"grads.selection"}});
}
TEST_CASE("SoftmaxExpertChoice: matches the naive backend") { expect_same_everywhere(SoftmaxExpertChoice{}); }
TEST_CASE("SoftmaxExpertChoice, sequences: matches the naive backend") {
  Backends on;
  expect_same_gate<double>(on, SoftmaxExpertChoice{.scores = {.experts = 5}}, 4,
                           {.items = 36, .length = 12, .padding = true});
}
TEST_CASE("SoftmaxExpertChoice, edge cases: matches the naive backend") { expect_same_at_edges(SoftmaxExpertChoice{}); }
TEST_CASE("HashGate: matches the naive backend") { expect_same_everywhere(HashGate{.k = 3}, {.zeros = {"dx"}}); }
TEST_CASE("SoftMoe: matches the naive backend") { expect_same_everywhere(SoftMoe{.slots = 2}); }
TEST_CASE("SoftMoe, float: matches the naive backend") { expect_same_everywhere<float>(SoftMoe{.slots = 2}); }
TEST_CASE("SoftMoe, sequences, unit items: matches the naive backend") {
  Backends on;
  for (const SoftMoe& gate : {SoftMoe::vmoe(), SoftMoe::reference()})
    expect_same_gate<double>(on, with_experts(gate, 5), 4, {.items = 36, .length = 12, .padding = true});
}

TEST_CASE("LinearScores, sequences, no bias: matches the naive backend") {
  expect_same_everywhere(SoftmaxTopK{.scores = {.length = 3, .bias = false}}, {}, 6);
}
TEST_CASE("Jitter, frozen cosine scores: matches the naive backend") {
  expect_same_everywhere(ComposedGate<Jitter<Fixed<CosineScores>>, Independent, TopK>{}, {.zeros = {"grads.scores"}});
}

TEST_CASE("Balance: matches the naive backend") { expect_same_everywhere(with_loss(Balance{.weight = 1})); }
TEST_CASE("GlobalBalance: matches the naive backend") {
  Backends on;
  const ComposedGate<LinearScores, Independent, GlobalBalance<TopK>> gate{
      .scores = {.experts = 11}, .selection = {.selection = {.k = 3}, .weight = 1}};
  SUBCASE("padding") { expect_same_gate<double>(on, gate, 5, {.items = 24, .padding = true}); }
  SUBCASE("float") { expect_same_gate<float>(on, gate, 5, {.items = 21}); }
}
TEST_CASE("SequenceBalance: matches the naive backend") {
  Backends on;
  const auto gate = [](bool sigmoid) {
    return WithAuxiliary<SoftmaxTopK, SequenceBalance>{
        .scores = {.experts = 11}, .auxiliary = {SequenceBalance{.weight = 1, .length = 5, .sigmoid = sigmoid}}};
  };
  SUBCASE("probabilities") { expect_same_gate<double>(on, gate(false), 5, {.items = 24, .padding = true}); }
  SUBCASE("sigmoids") { expect_same_gate<double>(on, gate(true), 5, {.items = 24, .padding = true}); }
  SUBCASE("float") { expect_same_gate<float>(on, gate(true), 5, {.items = 21}); }
}
TEST_CASE("Balance, per pick: matches the naive backend") {
  expect_same_everywhere(with_loss(Balance{.weight = 1, .per_pick = true}, 3));
}
TEST_CASE("ZLoss: matches the naive backend") { expect_same_everywhere(with_loss(ZLoss{.weight = 1})); }
TEST_CASE("GShard: matches the naive backend") { expect_same_everywhere(with_loss(GShard{.weight = 1}, 3)); }
TEST_CASE("Importance: matches the naive backend") { expect_same_everywhere(with_loss(Importance{.weight = 1})); }
TEST_CASE("Importance, unbiased variance: matches the naive backend") {
  expect_same_everywhere(with_loss(Importance{.weight = 1, .cv = CvSquared::fastmoe()}));
}
TEST_CASE("Load: matches the naive backend") { expect_same_everywhere(with_loss(Load{.weight = 1})); }
TEST_CASE("Load, Shazeer's form: matches the naive backend") {
  expect_same_everywhere(with_loss(Load::shazeer({.weight = 1})));
}

#ifdef GATEFOLD_SLOW_TESTS
TEST_CASE_TEMPLATE("gates, float: match the naive backend", G, SoftmaxDense, SoftmaxNoisyTop1, SoftmaxNoisyTopK, Switch,
                   GShardTop2, XMoe, SoftmaxExpertChoice) {
  expect_same_everywhere<float>(G{});
}
TEST_CASE("PatchNoisyTop1, float: matches the naive backend") {
  expect_same_everywhere<float>(PatchNoisyTop1{.scores = {.length = 3}}, {}, 6);
}
TEST_CASE("SmoeDropout, float: matches the naive backend") {
  expect_same_everywhere<float>(SmoeDropout{}, {.zeros = {"grads.scores"}});
}
TEST_CASE("HierarchicalGate: matches the naive backend") {
  Backends on;
  using Losses = WithAuxiliary<SoftmaxTopK, Balance>;
  const HierarchicalGate gate{
      SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
      Losses{.scores = {.experts = 4}, .selection = {.k = 2, .renormalise = false}, .auxiliary = {Balance{0.3}}}};
  SUBCASE("double") { expect_same_gate<double>(on, gate, 5, {.items = 21}); }
  SUBCASE("float") { expect_same_gate<float>(on, gate, 5, {.items = 21}); }
  SUBCASE("one item") { expect_same_gate<double>(on, gate, 5, {.items = 1}); }
  SUBCASE("padding") { expect_same_gate<double>(on, gate, 5, {.items = 24, .padding = true}); }
}

TEST_CASE("HashGate, float: matches the naive backend") {
  expect_same_everywhere<float>(HashGate{.k = 3}, {.zeros = {"dx"}});
}
TEST_CASE("Jitter, frozen cosine scores, float: matches the naive backend") {
  expect_same_everywhere<float>(ComposedGate<Jitter<Fixed<CosineScores>>, Independent, TopK>{},
                                {.zeros = {"grads.scores"}});
}
TEST_CASE("Balance, float: matches the naive backend") {
  expect_same_everywhere<float>(with_loss(Balance{.weight = 1}));
}
TEST_CASE("ZLoss, float: matches the naive backend") { expect_same_everywhere<float>(with_loss(ZLoss{.weight = 1})); }
TEST_CASE("GShard, float: matches the naive backend") {
  expect_same_everywhere<float>(with_loss(GShard{.weight = 1}, 3));
}
TEST_CASE("Importance, float: matches the naive backend") {
  expect_same_everywhere<float>(with_loss(Importance{.weight = 1}));
}
TEST_CASE("Load, float: matches the naive backend") { expect_same_everywhere<float>(with_loss(Load{.weight = 1})); }
#endif
