#include "gatefold/layer/no_residual.hpp"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Experts = Mixture<SoftmaxTopK, Mlp<Gelu>>;
Experts mixture() { return {{.scores = {.experts = 3}, .selection = {.k = 2}}, {.model_dim = 4, .hidden_dim = 5}}; }

}  // namespace

TEST_CASE("NoResidual (1): y = u(x), forward and backward") {
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
      check::conformance<Cpu>(NoResidual{Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
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

TEST_CASE("OneExpert (1): applies one network to every item") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, OneExpert{Mlp<Gelu>{.model_dim = 5, .hidden_dim = 7}}, 9);
  p.forward();
  std::vector<double> expected;
  for (Index n = 0; n < 9; ++n) {
    const auto row = naive::mlp(p.params.branch.expert, 0, naive::row(p.x, n), naive::gelu);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  CHECK(difference(values(p.y), expected) <= 1e-14);
}

TEST_CASE_TEMPLATE("OneExpert: equals a mixture of one expert, bit for bit", ExpertT, Linear, Mlp<Gelu>,
                   GatedMlp<Silu>) {
  Cpu::Context ctx(2);
  ExpertT expert{.model_dim = 5};
  if constexpr (requires { expert.hidden_dim; }) expert.hidden_dim = 7;
  auto one = pass<float>(ctx, OneExpert{expert}, 33);
  auto mixed = pass<float>(ctx, Mixture{SoftmaxTopK{.scores = {.experts = 1}, .selection = {.k = 1}}, expert}, 33);
  copy_pack(ctx, one.params.branch.expert, mixed.params.branch.expert);
  one.forward();
  mixed.forward();
  one.backward();
  mixed.backward();
  CHECK(
      same_bits(values(one.y, one.dx, one.grads.branch.expert), values(mixed.y, mixed.dx, mixed.grads.branch.expert)));
}

TEST_CASE("OneExpert: gradients and conformance") {
  const auto report = check::conformance<Cpu>(OneExpert{GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 7}},
                                              {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("OneExpert: wrong shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, OneExpert{Mlp<Gelu>{.model_dim = 5, .hidden_dim = 7}}, 9);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.pre.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.x.resize(9, 4); }) == "OneExpert.forward: x: expected [?, 5], got [9, 4]");
  CHECK(message([](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 8, 5); }) ==
        "OneExpert.forward: u: expected [9, 5], got [8, 5]");
  CHECK(message([](auto& p) { p.params.branch.expert.up.resize(2, 5, 7); }) ==
        "Mlp: params.up: expected [1, 5, 7], got [2, 5, 7]");
}
