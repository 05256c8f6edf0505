// Attention-aware gates in a block, compared with PyTorch: tests/golden/mixings.py.

#include <doctest/doctest.h>

#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: AttentionPosterior agrees with PyTorch for every FollowedHead") {
  for (const char* file : {"posterior_lowest", "posterior_lowest_of_sequence", "posterior_every"})
    agrees(
        std::string("gate/") + file,
        [](Golden& g) {
          const Attention attention{
              .model_dim = g.extent("model_dim"), .heads = g.extent("heads"), .causal = g.flag("causal")};
          const AttentionAware<SoftmaxTopK> gate{.scores = {.experts = g.extent("experts")},
                                                 .mixing = {.sigma = g.option("sigma"),
                                                            .head = static_cast<FollowedHead>(g.extent("head")),
                                                            .mean_of_heads = g.flag("mean_of_heads"),
                                                            .only_confident = g.flag("only_confident")},
                                                 .selection = {.k = 2}};
          return Block{attention, Residual{update::Plain{}, Mixture{gate, Linear{.model_dim = g.extent("model_dim")}}}};
        },
        [](Golden& g, auto& extra) {
          extra.attention = {.length = length(g), .valid = valid(g)};
          extra.layer.valid = valid(g);
        });
}
