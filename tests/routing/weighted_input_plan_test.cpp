#include "gatefold/routing/weighted_input_plan.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

struct Pick {
  Index item, expert;
  double weight;
};
/// Items 0 and 2 have two picks, item 1 has none, and one pick of item 3 is dropped.
const std::vector<Pick> some_picks{{0, 2, 0.5}, {0, 1, -2}, {2, 0, 3}, {2, 2, 0.25}, {3, ~Index(1), 7}, {3, 0, 1.5}};
constexpr Index items = 4, experts = 3, width = 5;

template <class T>
WeightedInputPlan<T, Cpu> plan_of(Cpu::Context& ctx) {
  WeightedInputPlan<T, Cpu> plan;
  plan.resize(items, experts, static_cast<Index>(some_picks.size()));
  for (Index p = 0; p < plan.item.size(); ++p) {
    const Pick& pick = some_picks[static_cast<std::size_t>(p)];
    plan.item(p) = pick.item, plan.expert(p) = pick.expert, plan.weight(p) = static_cast<T>(pick.weight);
  }
  plan.build(ctx);
  return plan;
}
/// The picks in the order of the slots: by expert, then in the order of picks.
std::vector<Pick> by_slot() {
  std::vector<Pick> slots;
  for (Index e = 0; e < experts; ++e)
    for (const Pick& pick : some_picks)
      if (pick.expert == e) slots.push_back(pick);
  return slots;
}

}  // namespace

TEST_CASE_TEMPLATE("WeightedInputPlan (1): weights multiply inputs, not outputs", T, float, double) {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    auto plan = plan_of<T>(ctx);
    const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, items, width);
    const auto in = plan.dispatch(ctx, x);
    CHECK(in.groups.slots == 6);  // one slot is unused
    CHECK(in.groups.rows.empty());
    const auto slots = by_slot();
    Index s = 0;
    for (const Pick& pick : slots) {
      CHECK(in.groups.expert(s) == pick.expert);
      for (Index j = 0; j < width; ++j) CHECK(in.x(s, j) == static_cast<T>(pick.weight) * x(pick.item, j));
      ++s;
    }
    CHECK(in.groups.expert(s) == -1);

    const auto z = uniform_tensor<T>(ctx, Seed{2}, 1, 6, width);
    Tensor<T, 2, Cpu> out(items, width);
    plan.combine(ctx, z, out);
    for (Index n = 0; n < items; ++n)
      for (Index j = 0; j < width; ++j) {
        T sum = 0;
        for (std::size_t i = 0; i < slots.size(); ++i)
          if (slots[i].item == n) sum += z(Index(i), j);
        CHECK(out(n, j) == sum);
      }
  }
}

TEST_CASE("WeightedInputPlan (2): gradients of weights and items") {
  Cpu::Context ctx(2);
  auto plan = plan_of<double>(ctx);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, width),
             dslots = uniform_tensor<double>(ctx, Seed{2}, 1, 6, width),
             dout = uniform_tensor<double>(ctx, Seed{3}, 1, items, width);
  (void)plan.dispatch(ctx, x);
  auto mark = ctx.mark();
  auto d = plan.grad(ctx);
  auto dx = constant_tensor<double>(ctx, 10, items, width), dz = constant_tensor<double>(ctx, -9, 6, width);
  plan.combine_backward(ctx, x, dout, dz, d);
  plan.dispatch_backward(ctx, x, dslots, dx, d);
  auto expected = constant_tensor<double>(ctx, 10, items, width);
  const auto slots = by_slot();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto s = static_cast<Index>(i);
    double dot = 0;
    for (Index j = 0; j < width; ++j) {
      dot += dslots(s, j) * x(slots[i].item, j);
      expected(slots[i].item, j) += slots[i].weight * dslots(s, j);
      CHECK(dz(s, j) == dout(slots[i].item, j));
    }
    CHECK(d.weight(plan.pick(s)) == doctest::Approx(dot).epsilon(1e-14));
  }
  CHECK(difference(values(dx), values(expected)) <= 1e-14);
  CHECK(dz(5, 0) == -9);    // the unused slot
  CHECK(d.weight(4) == 0);  // the dropped pick
}

TEST_CASE("WeightedInputPlan: is refused unless it was built") {
  Cpu::Context ctx(1);
  WeightedInputPlan<double, Cpu> plan;
  plan.resize(2, 3, 2);
  const Tensor<double, 2, Cpu> x(2, width);
  CHECK(message_of([&] { (void)plan.dispatch(ctx, x); }) ==
        "SparsePlan.dispatch: plan: expected a built plan (the gate must call plan.build(ctx)), got a plan that is not "
        "built");
}
