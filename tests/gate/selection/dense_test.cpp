#include "gatefold/gate/selection/dense.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture(Index experts) {
  return Mixture{SoftmaxDense{.scores = {.experts = experts}}, Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}};
}

}  // namespace

TEST_CASE("Dense (1): picks every expert, weighted by probability, in order") {
  Cpu::Context ctx(1);
  Nothing<double, Cpu> none;
  for (const Index experts : {1, 2, 5, 257}) {
    Tensor<double, 2, Cpu> q(6, experts);
    fill_uniform(ctx, Seed{2}, 0, 1, q);
    SparsePlan<double, Cpu> plan;
    Dense{}.forward(ctx, none, Candidates<double, Cpu>{q, q, q}, plan, none, none);
    REQUIRE(plan.expert.size() == 6 * experts);
    for (Index n = 0; n < 6; ++n)
      for (Index e = 0; e < experts; ++e) {
        CHECK(plan.item(n * experts + e) == n);
        CHECK(plan.expert(n * experts + e) == e);
        CHECK(plan.weight(n * experts + e) == q(n, e));
        CHECK(plan.offsets(e) == 6 * e);
      }
  }
}

TEST_CASE("Dense: a mixture is the expectation of the experts") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture(5), 7);
  p.forward();
  std::vector<double> expected;
  for (Index n = 0; n < 7; ++n) {
    const auto x = naive::row(p.x, n);
    const auto q = naive::softmax(naive::logits(p.params.branch.gate.scores, x));
    std::vector<double> u(4, 0);
    for (Index e = 0; e < 5; ++e) {
      const auto out = naive::mlp(p.params.branch.expert, e, x, naive::gelu);
      for (std::size_t d = 0; d < 4; ++d) u[d] += q[static_cast<std::size_t>(e)] * out[d];
    }
    expected.insert(expected.end(), u.begin(), u.end());
  }
  CHECK(difference(values(p.y), expected) <= 1e-13);
}

TEST_CASE("Dense: equals TopK of all experts without renormalising") {
  Cpu::Context ctx(1);
  auto dense = pass<double>(ctx, mixture(5), 7);
  auto all = pass<double>(ctx,
                          Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 5, .renormalise = false}},
                                  Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}},
                          7);
  dense.forward();
  all.forward();
  dense.backward();
  all.backward();
  CHECK(difference(dense.outcome(), all.outcome()) <= 1e-13);
}

TEST_CASE("Dense: gradients and conformance") {
  for (const Index experts : {1, 4}) {
    check::ConformanceOptions options{.items_are_independent = true};
    if (experts == 1) options.gradients.zero = {"gate.scores.weight", "gate.scores.bias"};  // the probability is 1
    const auto report = check::conformance<Cpu, double>(mixture(experts), options);
    CHECK_MESSAGE(report, report.str());
  }
}
