#include "gatefold/gate/gates.hpp"

#include <doctest/doctest.h>

#include <tuple>
#include <type_traits>

#include "support/every_gate.hpp"

using namespace gatefold;
using namespace gatefold::support;

GATEFOLD_EDGE_CASES(SoftmaxTopK, SoftmaxDense, SoftmaxNoisyTop1, PatchNoisyTop1, SoftmaxNoisyTopK, VMoe, Switch,
                    GShardTop2)

TEST_CASE("SimilarityAware, AttentionAware: swap the mixing of any gate and keep its losses") {
  CHECK(std::is_same_v<SimilarityAware<XMoe>, ComposedGate<CosineScores, TokenSimilarity, TopK>>);
  CHECK(std::is_same_v<AttentionAware<VMoe>,
                       ComposedGate<LinearScores, AttentionPosterior, Capacity<NoisyTopK>, Importance, Load>>);
  const auto gate = SimilarityAware<SoftmaxTopK>{.scores = {.experts = 8}, .mixing = {.tau = 2}, .selection = {.k = 2}};
  CHECK(gate.experts() == 8);
}

TEST_CASE("published: the settings of the papers") {
  const VMoe v = published::vmoe(8);
  CHECK_FALSE(v.scores.bias);
  CHECK_FALSE(v.selection.selection.renormalise);
  CHECK_FALSE(v.selection.selection.learned);
  // 400 tokens, K = 2, E = 8: 105 rounded up to a multiple of 4; everything in evaluation
  CHECK(v.selection.room(400, 2, 8) == 108);
  CHECK(published::vmoe(8, 2, 4.0).selection.room(400, 2, 8) == 400);
  CHECK(v.selection.group == 0);
  CHECK(published::vmoe(8, 2, 1.05, 400).selection.group == 400);
  const SoftmaxNoisyTopK z = published::shazeer(8);
  CHECK_FALSE(z.scores.bias);
  CHECK(z.scores.initial.law == Initial::Law::zero);
  CHECK(z.selection.k == 4);
  CHECK(z.selection.learned);
  CHECK(z.selection.epsilon == 0);
  CHECK(std::get<Importance>(z.auxiliary).weight == 0.1);
  CHECK(std::get<Importance>(z.auxiliary).cv.epsilon == 1e-10);
  CHECK(std::get<Load>(z.auxiliary).weight == 0.1);
  CHECK(std::get<Load>(z.auxiliary).excluding);
  const SigmoidTopK a = published::aux_loss_free(64), d = published::deepseek_v3();
  CHECK_FALSE(a.scores.bias);
  CHECK_FALSE(a.selection.renormalise);
  CHECK(a.selection.scale == 1);
  CHECK(a.selection.speed == 0.001);
  CHECK(d.scores.experts == 256);
  CHECK(d.selection.k == 8);
  CHECK(d.selection.renormalise);
  CHECK(d.selection.scale == 2.5);
  CHECK(d.selection.groups == 8);
  CHECK(d.selection.top_groups == 4);
  const Switch s = published::switch_transformer(4);
  CHECK(s.selection.selection.k == 1);
  CHECK_FALSE(s.selection.selection.renormalise);
  CHECK(s.selection.room(64, 1, 4) == 20);
  const GShardTop2 g = published::gshard(4);
  CHECK(g.selection.selection.k == 2);
  CHECK(g.selection.room(64, 2, 4) == 32);
}
