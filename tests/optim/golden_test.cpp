// Steps of AdamW and Sgd, also scheduled and clipped, compared with PyTorch: tests/golden/optimizers.py.

#include <doctest/doctest.h>

#include <string>
#include <type_traits>

#include "gatefold/expert/linear.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "support/golden.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

template <class O>
void steps_agree(Golden& g, const O& optimizer) {
  Cpu::Context ctx(2);
  auto params = Linear{.model_dim = 3, .output_dim = 2}.init<double, Cpu>(ctx, 1, Seed{1});
  auto grads = zeros_like(ctx, params);
  g.read("params", params);
  auto state = optimizer.begin(ctx, params);
  // Without momentum, Sgd does not write its moments. The file has m = g + λ p, which no later step reads.
  bool keeps_moments = true;
  if constexpr (std::is_same_v<O, optim::Sgd>) keeps_moments = optimizer.momentum > 0;
  for (const std::string t : {"1.", "2.", "3.", "4.", "5."}) {
    CAPTURE(t);
    g.read(t + "grads", grads);
    optimizer.step(ctx, params, grads, state);
    g.compare(t + "params", params);
    if (keeps_moments) {
      g.compare(t + "state", state);
    } else {
      auto unused = optimizer.begin(ctx, params);
      g.read(t + "state", unused);
      CHECK(same_bits(values(state), values(optimizer.begin(ctx, params))));
    }
  }
  CHECK(g.unread() == "");
}
/// Compares every case of a file. optimizer(case) makes the optimizer with the options of the case.
template <class F>
void optimizer_agrees(const char* file, F&& optimizer) {
  for (Golden& g : Golden::read_all(std::string("optim/") + file)) {
    CAPTURE(g.name);
    const auto inner = optimizer(g);
    const auto schedule = [&] {
      return optim::WarmupCosine{.warmup = g.extent("warmup"), .total = g.extent("total"), .floor = g.option("floor")};
    };
    if (g.has("options.norm")) {
      steps_agree(g, optim::Scheduled{optim::Clipped{inner, g.option("norm")}, schedule()});
    } else if (g.has("options.total")) {
      steps_agree(g, optim::Scheduled{inner, schedule()});
    } else {
      steps_agree(g, inner);
    }
  }
}

double option(Golden& g, const std::string& name, double otherwise) {
  return g.has("options." + name) ? g.option(name) : otherwise;
}

}  // namespace

TEST_CASE("golden: AdamW equals torch.optim.AdamW") {
  optimizer_agrees("adamw", [](Golden& g) {
    const optim::AdamW standard;
    return optim::AdamW{.lr = g.option("lr"),
                        .beta1 = option(g, "beta1", standard.beta1),
                        .beta2 = option(g, "beta2", standard.beta2),
                        .epsilon = option(g, "epsilon", standard.epsilon),
                        .decay = option(g, "decay", standard.decay)};
  });
}

TEST_CASE("golden: Sgd equals torch.optim.SGD") {
  optimizer_agrees("sgd", [](Golden& g) {
    return optim::Sgd{.lr = g.option("lr"), .momentum = option(g, "momentum", 0), .decay = option(g, "decay", 0)};
  });
}
