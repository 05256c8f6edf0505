#include "gatefold/papers/expert_outputs.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

Mixture<SoftmaxTopK, Linear> mixture() {
  return {SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 4, .output_dim = 2}};
}

}  // namespace

TEST_CASE("expert_outputs (1): computes every expert on every item") {
  Cpu::Context ctx(2);
  auto p = pass<double>(ctx, mixture(), 7);
  const auto& bank = p.params.branch.expert;
  const auto u = expert_outputs(ctx, mixture(), p.params.branch, p.x.view());
  std::vector<double> expected;
  for (Index n = 0; n < 7; ++n)
    for (Index e = 0; e < 3; ++e) {
      const auto row = naive::affine(
          naive::row(p.x, n), 2, [&](Index d, Index j) { return bank.weight(e, d, j); },
          [&](Index j) { return bank.bias(e, j); });
      expected.insert(expected.end(), row.begin(), row.end());
    }
  CHECK(difference(values(u), expected) <= 1e-14);
}

TEST_CASE("slot_outputs (2): picked outputs combine to the layer's output") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, mixture(), 9);
  p.forward();
  const auto u = expert_outputs(ctx, mixture(), p.params.branch, p.x.view());
  const auto& plan = p.saved.branch.plan;
  const auto z = slot_outputs(ctx, mixture(), p.params.branch, plan, p.x.view());
  const auto groups = plan.groups();
  for (Index s = 0; s < groups.slots; ++s)
    for (Index d = 0; d < 2; ++d) CHECK(z(s, d) == u(groups.row(s), groups.expert(s), d));
  auto combined = constant_tensor<float>(ctx, 0, 9, 2);
  plan.combine(ctx, z, combined);
  CHECK(same_bits(values(combined), values(p.y)));
}

TEST_CASE("expert_outputs: empty batches work; wrong shapes throw") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, mixture(), 2);
  CHECK(expert_outputs(ctx, mixture(), p.params.branch, p.x.view().rows(0, 0)).size() == 0);
  CHECK(message_of([&] { (void)expert_outputs(ctx, mixture(), p.params.branch, p.x.view().as(1, 8)); }) ==
        "expert_outputs: x: expected [?, 4], got [1, 8]");
  p.forward();
  const auto& plan = p.saved.branch.plan;
  CHECK(message_of([&] { (void)slot_outputs(ctx, mixture(), p.params.branch, plan, p.x.view().rows(0, 1)); }) ==
        "slot_outputs: x: expected [2, 4], got [1, 4]");
  p.params.branch.expert.weight.resize(2, 4, 2);
  CHECK(message_of([&] { (void)expert_outputs(ctx, mixture(), p.params.branch, p.x.view()); }) ==
        "Linear: params.weight: expected [3, 4, 2], got [2, 4, 2]");
}
