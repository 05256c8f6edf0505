#include "gatefold/routing/slot_weights.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("SlotWeights: equal the picks' weights; dropped picks have 0") {
  Cpu::Context ctx(1);
  SparsePlan<double, Cpu> plan;
  plan.resize(3, 2, 6);
  const Index expert[] = {1, ~Index(0), 0, 1, no_pick, 0};
  for (Index p = 0; p < 6; ++p) {
    plan.item(p) = p / 2;
    plan.expert(p) = expert[p];
    plan.weight(p) = 10 + static_cast<double>(p);
  }
  plan.build(ctx);
  auto mark = ctx.mark();
  auto d = plan.grad(ctx);
  const SlotWeights<double, Cpu> weights = plan.slot_weights(d);
  std::vector<double> w;
  for (Index s = 0; s < plan.offsets(2); ++s) {
    w.push_back(weights(s));
    weights.set_adjoint(s, static_cast<double>(s + 1));
  }
  CHECK(w == std::vector<double>{12, 15, 10, 13});
  CHECK(std::vector<double>(d.weight.data(), d.weight.data() + 6) == std::vector<double>{3, 0, 1, 4, 0, 2});
}

TEST_CASE("SlotWeights: without picks, the slots are in order") {
  const std::vector<double> weight{5, 6};
  std::vector<double> dweight(2);
  const SlotWeights<double, Cpu> weights{weight, dweight};
  CHECK(weights(1) == 6);
  weights.set_adjoint(1, 3);
  CHECK(dweight == std::vector<double>{0, 3});
}
