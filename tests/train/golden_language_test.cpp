// Steps of a small language model, compared with PyTorch: tests/golden/language.py.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: training an embedding and a streamed loss equals PyTorch") {
  for (Golden& g : Golden::read_all("train/language")) {
    CAPTURE(g.name);
    const Index vocabulary = 11, dim = 3;
    Cpu::Context ctx(2);
    Trainer trainer{
        ctx,
        Chain{Embedding{
                  .vocabulary = vocabulary, .model_dim = dim, .places = g.extent("places"), .sparse = g.flag("sparse")},
              Linear{.model_dim = dim}},
        StreamedCrossEntropy{
            .vocabulary = vocabulary, .model_dim = dim, .bias = g.flag("bias"), .tied = g.flag("tied"), .ignore = -1},
        optim::AdamW{.lr = g.option("lr"), .epsilon = g.option("epsilon"), .decay = g.option("decay")},
        Seed{1},
        Element<double>{}};
    g.read("params", trainer.params);
    typename decltype(trainer)::Extra extra;
    std::get<0>(extra.layers).length = g.extent("places");
    for (const std::string t : {"1.", "2.", "3.", "4."}) {
      CAPTURE(t);
      const auto ids = g.indices(t + "ids"), target = g.indices(t + "target");
      g.compare(t + "value", std::vector<double>{trainer.step(ids, target, extra)});
      g.compare(t + "grads", trainer.grads);
      g.compare(t + "params", trainer.params);
    }
    CHECK(g.unread() == "");
  }
}
