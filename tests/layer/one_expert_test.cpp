#include "gatefold/layer/one_expert.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

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
  const auto report = check::conformance<Cpu, double>(OneExpert{GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 7}},
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
