#include "gatefold/gate/gates.hpp"

#include <doctest/doctest.h>

#include <tuple>
#include <type_traits>

#include "support/every_gate.hpp"

using namespace gatefold;
using namespace gatefold::support;

GATEFOLD_EDGE_CASES(SoftmaxTopK, SoftmaxDense, SoftmaxNoisyTop1, PatchNoisyTop1, SoftmaxNoisyTopK, VMoe, Switch,
                    GShardTop2)

TEST_CASE("SimilarityAware, AttentionAware: replace the mixing, keep the losses") {
  CHECK(std::is_same_v<SimilarityAware<XMoe>, ComposedGate<CosineScores, TokenSimilarity, TopK>>);
  CHECK(std::is_same_v<AttentionAware<VMoe>,
                       ComposedGate<LinearScores, AttentionPosterior, Capacity<NoisyTopK<>>, Importance, Load>>);
  const auto gate = SimilarityAware<SoftmaxTopK>{.scores = {.experts = 8}, .mixing = {.tau = 2}, .selection = {.k = 2}};
  CHECK(count_experts(gate) == 8);
}

TEST_CASE("presets: keep given options and set the remaining options") {
  const XMoe x{.scores = CosineScores::reference({.experts = 8, .dim = 16})};
  CHECK(x.scores.experts == 8);
  CHECK(x.scores.dim == 16);
  CHECK(x.scores.temperature == 0);
  CHECK_FALSE(x.scores.unit_items);
  CHECK(CosineScores::reference().dim == 8);
  const auto top_1 = NoisyTop1<>::reference({.scale = 3});
  CHECK(top_1.scale == 3);
  CHECK(top_1.noisy_weight);
  const auto learned = NoisyTopK<>::reference({.k = 3}), fixed = NoisyTopK<>::vmoe({.k = 3, .deviation = 2});
  CHECK(learned.k == 3);
  CHECK(learned.epsilon == 0.01);
  CHECK(fixed.deviation == 2);
  CHECK_FALSE(fixed.learned);
  CHECK(Balance::reference({.weight = 0.5}).weight == 0.5);
  CHECK(Balance::reference({.weight = 0.5}).per_pick);
  CHECK(Importance::shazeer({.weight = 0.5}).weight == 0.5);
  CHECK(Importance::shazeer().weight == 0.1);
  CHECK(Load::shazeer({.weight = 0.5}).excluding);
  const SoftMoe soft = SoftMoe::reference({.count = 4, .slots = 2}), inside = SoftMoe::vmoe({.count = 4});
  CHECK(soft.count == 4);
  CHECK(soft.slots == 2);
  CHECK(soft.unit_dispatch);
  CHECK(inside.count == 4);
  CHECK(inside.norm == UnitNorm::inside);
}

TEST_CASE("published: the settings equal those of the papers") {
  const VMoe v = published::vmoe({.experts = 8});
  CHECK_FALSE(v.scores.bias);
  CHECK_FALSE(v.selection.selection.renormalise);
  CHECK_FALSE(v.selection.selection.learned);
  // With 400 tokens, K = 2 and E = 8, the room is 105, rounded up to a multiple of 4. In evaluation it is 400.
  CHECK(v.selection.room(400, 2, 8) == 108);
  CHECK(published::vmoe({.experts = 8, .k = 2, .factor = 4.0}).selection.room(400, 2, 8) == 400);
  CHECK(v.selection.group == 0);
  CHECK(published::vmoe({.experts = 8, .k = 2, .factor = 1.05, .group = 400}).selection.group == 400);
  const SoftmaxNoisyTopK z = published::shazeer({.experts = 8});
  CHECK_FALSE(z.scores.bias);
  CHECK(z.scores.initial.law == Initial::Law::zero);
  CHECK(z.selection.k == 4);
  CHECK(z.selection.learned);
  CHECK(z.selection.epsilon == 0);
  CHECK(std::get<Importance>(z.auxiliary).weight == 0.1);
  CHECK(std::get<Importance>(z.auxiliary).cv.epsilon == 1e-10);
  CHECK(std::get<Load>(z.auxiliary).weight == 0.1);
  CHECK(std::get<Load>(z.auxiliary).excluding);
  const SigmoidTopK a = published::aux_loss_free({.experts = 64}), d = published::deepseek_v3();
  CHECK_FALSE(a.scores.bias);
  CHECK_FALSE(a.selection.renormalise);
  CHECK(a.selection.scale == 1);
  CHECK(a.selection.speed == 0.001);
  CHECK(d.scores.experts == 256);
  CHECK(d.selection.k == 8);
  CHECK(d.selection.renormalise);
  CHECK(d.selection.scale == 2.5);
  CHECK(published::deepseek_v3({.scale = 1.5}).selection.scale == 1.5);
  CHECK(d.selection.groups == 8);
  CHECK(d.selection.top_groups == 4);
  const Switch s = published::switch_transformer({.experts = 4});
  CHECK(s.selection.selection.k == 1);
  CHECK_FALSE(s.selection.selection.renormalise);
  CHECK(s.selection.room(64, 1, 4) == 20);
  const GShardTop2 g = published::gshard({.experts = 4});
  CHECK(g.selection.selection.k == 2);
  CHECK(g.selection.selection.certain == 0.5);
  CHECK(g.selection.room(64, 2, 4) == 32);
  CHECK(published::gshard({.experts = 4, .factor = 2}).selection.room(64, 2, 4) == 64);
  const StableMoe stable = published::stable_moe({.experts = 4, .vocabulary = 100});
  CHECK_FALSE(stable.scores.bias);
  CHECK(stable.selection.vocabulary == 100);
  CHECK(stable.selection.router_dim == 50);
  CHECK(stable.selection.balance == 0.3);
  CHECK(stable.selection.distillation == 1);
}
