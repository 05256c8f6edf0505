// Scores of other kinds, and a gate without picks, against PyTorch: tests/golden/gates.py.

#include <doctest/doctest.h>

#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: CosineScores") {
  for (const char* file : {"cosine", "cosine_reference"})
    gate_agrees(file, [](Golden& g) {
      CosineScores scores = g.flag("reference") ? CosineScores::reference() : CosineScores{};
      scores.experts = g.extent("experts");
      scores.dim = g.extent("dim");
      return XMoe{.scores = scores, .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")}};
    });
}

TEST_CASE("golden: frozen scores, K given with the call") {
  gate_agrees("smoe_dropout",
              [](Golden& g) {
                return SmoeDropout{.scores = {.scores = {.experts = g.extent("experts")}},
                                   .selection = {.renormalise = g.flag("renormalise")}};
              },
              [](Golden& g, auto& extra) { extra.selection.k = g.extent("k"); });
}

TEST_CASE("golden: SoftMoe, of the paper and of both codes") {
  const auto agrees_as = [](const char* file, SoftMoe form) {
    gate_agrees(file,
                [&](Golden& g) {
                  SoftMoe gate = form;
                  gate.count = g.extent("experts");
                  gate.slots = g.extent("slots");
                  return gate;
                },
                [](Golden& g, auto& extra) { extra = {.length = length(g), .valid = valid(g)}; });
  };
  agrees_as("soft_moe_paper", {});
  agrees_as("soft_moe_vmoe", SoftMoe::vmoe());
  agrees_as("soft_moe_reference", SoftMoe::reference());
}
