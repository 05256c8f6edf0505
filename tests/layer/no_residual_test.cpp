#include "gatefold/layer/no_residual.hpp"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Experts = Mixture<SoftmaxTopK, Mlp<Gelu>>;
Experts mixture() { return {{.scores = {.experts = 3}, .selection = {.k = 2}}, {.model_dim = 4, .hidden_dim = 5}}; }

}  // namespace

TEST_CASE("NoResidual (1): equals its branch, forward and backward") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, NoResidual{mixture()}, 9);
  p.forward();
  p.backward();
  Tensor<float, 2, Cpu> u(9, 4), dx(9, 4);
  set_zero(ctx, dx);
  auto grads = zeros_like(ctx, p.params.branch);
  Saved<Experts, float, Cpu> saved;
  ExtraGrad<Experts, float, Cpu> dextra;
  mixture().forward(ctx, p.params.branch, p.x, u, saved, {});
  mixture().backward(ctx, p.params.branch, p.x, saved, p.dy, dx, grads, {}, dextra);
  CHECK(same_bits(values(p.y, p.dx, p.grads), values(u, dx, grads)));
}

TEST_CASE("NoResidual: keeps the branch's tensor names; has no carry") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, NoResidual{mixture()}, 2);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
  CHECK(names == std::vector<std::string>{"gate.scores.weight", "gate.scores.bias", "expert.up", "expert.up_bias",
                                          "expert.down", "expert.down_bias"});
  CHECK(std::is_same_v<decltype(p.carry), Nothing<float, Cpu>>);
}

TEST_CASE("NoResidual: outputs may have any width") {
  const auto report =
      check::conformance<Cpu, double>(NoResidual{Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                                         Linear{.model_dim = 4, .output_dim = 1}}},
                                      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("NoResidual: wrong branch parameters throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, PreNorm{LayerNorm{}, mixture()}, 5);
  p.params.branch.branch.expert.up.resize(3, 4, 4);
  CHECK(message_of([&] { p.forward(); }) == "Mlp: params.up: expected [3, 4, 5], got [3, 4, 4]");
  CHECK(p.untouched());
  CHECK(p.saved.branch.normed.size() == 0);
  auto q = pass<float>(ctx, Linear{.model_dim = 4}, 5);
  q.params.branch.expert.weight.resize(1, 4, 3);
  CHECK(message_of([&] { q.forward(); }) == "Linear: params.weight: expected [1, 4, 4], got [1, 4, 3]");
  CHECK(q.untouched());
}

TEST_CASE("NoResidual: infer returns the bits of forward") {
  Cpu::Context ctx(1);
  auto a = pass<float>(ctx, NoResidual{mixture()}, 9), b = pass<float>(ctx, NoResidual{mixture()}, 9);
  a.forward();
  b.infer();
  CHECK(same_bits(values(a.y), values(b.y)));
}
