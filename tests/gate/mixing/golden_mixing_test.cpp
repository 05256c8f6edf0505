// Gates whose items share their probabilities with similar items, compared with PyTorch: tests/golden/mixings.py.

#include <doctest/doctest.h>

#include "gatefold/gate/gates.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

TokenSimilarity similarity(Golden& g) {
  return {.tau = g.option("tau"),
          .causal = g.flag("causal"),
          .learned_metric = g.flag("learned_metric"),
          .only_confident = g.flag("only_confident")};
}
void give(Golden& g, auto& extra) {
  extra.mixing.length = length(g);
  if (const double tau = g.option("called_with_tau"); tau > 0) extra.mixing.tau = tau;
  extra.valid = valid(g);
}

}  // namespace

TEST_CASE("golden: TokenSimilarity agrees with PyTorch for all options") {
  for (const char* file : {"similarity", "similarity_metric", "similarity_confident"})
    gate_agrees(
        file,
        [](Golden& g) {
          return SimilarityAware<SoftmaxTopK>{.scores = {.experts = g.extent("experts")},
                                              .mixing = similarity(g),
                                              .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")}};
        },
        [](Golden& g, auto& extra) { give(g, extra); });
}

TEST_CASE("golden: TokenSimilarity with learned noise, losses agrees with PyTorch") {
  gate_agrees(
      "similarity_noisy",
      [](Golden& g) {
        return SimilarityAware<SoftmaxNoisyTopK>{.scores = {.experts = g.extent("experts")},
                                                 .mixing = similarity(g),
                                                 .selection = {.k = g.extent("k"), .epsilon = g.option("epsilon")},
                                                 .auxiliary = {Importance::shazeer(), Load::shazeer()}};
      },
      [](Golden& g, auto& extra) {
        give(g, extra);
        extra.selection = noise(g);
      });
}
