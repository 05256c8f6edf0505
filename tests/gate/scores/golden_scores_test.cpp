// CosineScores, SmoeDropout, HashGate and SoftMoe, compared with PyTorch: tests/golden/gate_cases.py.

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "support/golden_gates.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("golden: CosineScores agrees with PyTorch") {
  for (const char* file : {"cosine", "cosine_reference"})
    gate_agrees(file, [](Golden& g) {
      CosineScores scores = g.flag("reference") ? CosineScores::reference() : CosineScores{};
      scores.experts = g.extent("experts");
      scores.dim = g.extent("dim");
      return XMoe{.scores = scores, .selection = {.k = g.extent("k"), .renormalise = g.flag("renormalise")}};
    });
}

TEST_CASE("golden: SmoeDropout with K per call agrees with PyTorch") {
  gate_agrees(
      "smoe_dropout",
      [](Golden& g) {
        return SmoeDropout{.scores = {.scores = {.experts = g.extent("experts")}},
                           .selection = {.renormalise = g.flag("renormalise")}};
      },
      [](Golden& g, auto& extra) { extra.selection.k = g.extent("k"); });
}

TEST_CASE("golden: HashGate agrees with PyTorch") {
  for (Golden& g : Golden::read_all("gate/hash")) {
    CAPTURE(g.name);
    Cpu::Context ctx(2);
    const HashGate gate{
        .count = g.extent("experts"), .k = g.extent("k"), .seed = {static_cast<std::uint64_t>(g.option("seed"))}};
    const NoResidual layer{Mixture{gate, small_expert(g)}};
    const std::vector<Index> ids = g.indices("ids");
    const Extra<decltype(layer), double, Cpu> extra{{View<const Index, 1, Cpu>(ids)}};
    auto params = init_params<double, Cpu>(layer, ctx, Seed{1}), grads = zeros_like(ctx, params);
    Tensor<double, 2, Cpu> x(g.items(), layer.in_dim()), dx(x.extent(0), x.extent(1)), y(g.items(), 2),
        dy(g.items(), 2);
    Nothing<double, Cpu> none;
    Saved<decltype(layer), double, Cpu> saved;
    set_zero(ctx, dx);
    g.read("params", params);
    g.read("x", x);
    g.read("dy", dy);
    layer.forward(ctx, params, x, none, y, saved, extra);
    backward(layer, ctx, params, x, saved, dy, none, dx, grads, extra);
    g.compare("y", y);
    g.compare("dx", dx);
    g.compare("grads", grads);
    CHECK(g.unread() == "");
  }
}

TEST_CASE("golden: SoftMoe presets agree with PyTorch") {
  const auto agrees_as = [](const char* file, SoftMoe form) {
    gate_agrees(
        file,
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
