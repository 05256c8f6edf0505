#include "gatefold/routing/sparse_plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

using naive::random_vector;

namespace {

using B = Cpu;

struct Pick {
  Index item, expert;
  double weight;
};

template <class T>
void build(Cpu::Context& ctx, SparsePlan<T, B>& plan, Index items, Index experts, const std::vector<Pick>& picks) {
  plan.resize(items, experts, static_cast<Index>(picks.size()));
  for (std::size_t p = 0; p < picks.size(); ++p) {
    plan.item.data()[p] = picks[p].item;
    plan.expert.data()[p] = picks[p].expert;
    plan.weight.data()[p] = static_cast<T>(picks[p].weight);
  }
  plan.build(ctx);
}

struct Case {
  std::string name;
  Index items, experts;
  std::vector<Pick> picks;
};

/// Returns a case with k picks per item. expert(n, j) returns the expert of pick j of item n.
template <class F>
Case made(std::string name, Index items, Index experts, Index k, const F& expert) {
  Case c{std::move(name), items, experts, {}};
  const auto weights = random_vector<double>(items * k, 77);
  for (Index n = 0; n < items; ++n)
    for (Index j = 0; j < k; ++j) c.picks.push_back({n, expert(n, j), weights[static_cast<std::size_t>(n * k + j)]});
  return c;
}

std::vector<Case> cases() {
  auto any = [](Index experts) { return [=](Index n, Index j) { return (n * 7919 + j * 31 + n * n * 13) % experts; }; };
  std::vector<Case> all;
  all.push_back(made("one item", 1, 4, 2, any(4)));
  all.push_back(made("some items", 23, 5, 2, any(5)));
  all.push_back(made("one expert", 9, 1, 1, any(1)));
  all.push_back(made("K = E", 6, 4, 4, [](Index, Index j) { return 3 - j; }));
  all.push_back(made("six picks an item", 9, 8, 6, [](Index n, Index j) { return (3 * n + j) % 8; }));
  all.push_back(made("257 experts", 300, 257, 3, any(257)));
  all.push_back(made("all to one", 12, 6, 1, [](Index, Index) { return Index(4); }));
  all.push_back(made("first and last expert empty", 10, 5, 2, [](Index n, Index j) { return 1 + (n + j) % 3; }));
  all.push_back(
      made("some dropped", 17, 4, 2, [](Index n, Index j) { return (n + j) % 3 == 0 ? Index(-1) : (n * j + n) % 4; }));
  all.push_back(made("all dropped", 5, 3, 2, [](Index, Index) { return Index(-1); }));
  all.push_back(made("the same expert twice", 4, 3, 2, [](Index n, Index) { return n % 3; }));
  all.push_back({"no items", 0, 3, {}});
  all.push_back({"items without picks", 7, 3, {{5, 1, 0.5}, {2, 1, 2.0}, {5, 0, -1.0}}});
  // Picks in random order, because a gate may write them in any order.
  Case shuffled = made("shuffled", 40, 6, 3, any(6));
  std::mt19937 generator(3);
  std::shuffle(shuffled.picks.begin(), shuffled.picks.end(), generator);
  all.push_back(std::move(shuffled));
  return all;
}

/// Returns the pick of each slot: the kept picks, sorted stably by expert.
std::vector<std::size_t> sorted(const Case& c) {
  std::vector<std::size_t> order;
  for (std::size_t p = 0; p < c.picks.size(); ++p)
    if (c.picks[p].expert >= 0) order.push_back(p);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return c.picks[a].expert < c.picks[b].expert; });
  return order;
}

template <class T>
Tensor<T, 2, B> matrix(Index rows, Index columns, unsigned seed) {
  Tensor<T, 2, B> t(rows, columns);
  const auto values = random_vector<T>(rows * columns, seed);
  std::copy(values.begin(), values.end(), t.data());
  return t;
}

template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-14;

constexpr Index kColumns = 5;

}  // namespace

TEST_CASE("SparsePlan: build sorts picks stably by expert") {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    for (const Case& c : cases()) {
      CAPTURE(c.name);
      SparsePlan<double, B> plan;
      build(ctx, plan, c.items, c.experts, c.picks);
      const auto order = sorted(c);
      CHECK(plan.items() == c.items);
      CHECK(plan.experts() == c.experts);
      const Groups<B> groups = plan.groups();
      CHECK(groups.slots == static_cast<Index>(c.picks.size()));
      REQUIRE(groups.offsets(c.experts) == static_cast<Index>(order.size()));
      Index wrong = 0;
      for (std::size_t s = 0; s < order.size(); ++s) {
        wrong += plan.pick.data()[s] != static_cast<Index>(order[s]);
        wrong += groups.row(static_cast<Index>(s)) != c.picks[order[s]].item;
        wrong += groups.expert(static_cast<Index>(s)) != c.picks[order[s]].expert;
      }
      for (std::size_t s = order.size(); s < c.picks.size(); ++s) wrong += groups.row(static_cast<Index>(s)) != -1;
      CHECK(wrong == 0);

      for (Index n = 0; n < c.items; ++n) {  // the slots of an item in ascending order
        std::vector<Index> expected;
        for (std::size_t s = 0; s < order.size(); ++s)
          if (c.picks[order[s]].item == n) expected.push_back(static_cast<Index>(s));
        const std::vector<Index> got(plan.item_slots.data() + plan.item_offsets(n),
                                     plan.item_slots.data() + plan.item_offsets(n + 1));
        if (got != expected) FAIL_CHECK("slots of item " << n);
      }
    }
  }
}

TEST_CASE("SparsePlan: build_complete gives the plan of build") {
  for (const int threads : {1, 3}) {
    Cpu::Context ctx(threads);
    for (const auto& [items, experts, k] :
         {std::array<Index, 3>{0, 4, 2}, {1, 3, 3}, {50, 7, 1}, {300, 5, 4}, {9, 1, 1}}) {
      const Case c =
          made("complete", items, experts, k, [e = experts](Index n, Index j) { return (n * n * 13 + n + j) % e; });
      SparsePlan<double, B> plan, complete;
      build(ctx, plan, items, experts, c.picks);
      build(ctx, complete, items, experts, c.picks);
      for (auto* t : {&complete.offsets, &complete.pick, &complete.rows, &complete.item_offsets, &complete.item_slots})
        fill(ctx, t->view(), Index(-7));
      complete.build_complete(ctx);
      const auto same = [](const auto& a, const auto& b) {
        return std::equal(a.data(), a.data() + a.size(), b.data());
      };
      CHECK(same(plan.offsets, complete.offsets));
      CHECK(same(plan.pick, complete.pick));
      CHECK(same(plan.rows, complete.rows));
      CHECK(same(plan.item_offsets, complete.item_offsets));
      CHECK(same(plan.item_slots, complete.item_slots));
    }
  }
}

TEST_CASE_TEMPLATE("SparsePlan (1): combine sums the weighted slots of each item", T, float, double) {
  Cpu::Context ctx(2);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    SparsePlan<T, B> plan;
    build(ctx, plan, c.items, c.experts, c.picks);
    const auto order = sorted(c);
    const auto z = matrix<T>(static_cast<Index>(c.picks.size()), kColumns, 5);
    auto out = matrix<T>(c.items, kColumns, 6);  // overwritten
    plan.combine(ctx, z, out);
    double worst = 0;
    for (Index n = 0; n < c.items; ++n)
      for (Index j = 0; j < kColumns; ++j) {
        double expected = 0;
        for (std::size_t s = 0; s < order.size(); ++s)
          if (c.picks[order[s]].item == n)
            expected += static_cast<double>(static_cast<T>(c.picks[order[s]].weight)) *
                        static_cast<double>(z(static_cast<Index>(s), j));
        worst = support::larger(worst, std::abs(expected - static_cast<double>(out(n, j))));
      }
    CHECK(worst <= tolerance<T>);
  }
}

TEST_CASE_TEMPLATE("SparsePlan: gradients of combine and dispatch equal loops", T, float, double) {
  Cpu::Context ctx(2);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    SparsePlan<T, B> plan;
    build(ctx, plan, c.items, c.experts, c.picks);
    const auto order = sorted(c);
    const Index S = static_cast<Index>(c.picks.size());
    const auto z = matrix<T>(S, kColumns, 5), dout = matrix<T>(c.items, kColumns, 6),
               dslots = matrix<T>(S, kColumns, 7);
    const auto x = matrix<T>(c.items, kColumns, 8), dx_before = matrix<T>(c.items, kColumns, 9);
    auto dx = matrix<T>(c.items, kColumns, 9), dz = matrix<T>(S, kColumns, 10);
    const auto dz_before = matrix<T>(S, kColumns, 10);

    const auto mark = ctx.mark();
    auto d = plan.grad(ctx);
    REQUIRE(d.weight.size() == S);
    for (Index p = 0; p < S; ++p) CHECK(d.weight(p) == 0);
    plan.combine_backward(ctx, z, dout, dz, d);
    plan.dispatch_backward(ctx, x, dslots, dx, d);

    std::vector<double> dweight(c.picks.size(), 0.0), dx_expected(static_cast<std::size_t>(c.items * kColumns));
    for (Index i = 0; i < c.items * kColumns; ++i)
      dx_expected[static_cast<std::size_t>(i)] = static_cast<double>(dx_before.data()[i]);
    double worst = 0;
    for (std::size_t s = 0; s < order.size(); ++s) {
      const Pick& pick = c.picks[order[s]];
      const Index slot = static_cast<Index>(s);
      for (Index j = 0; j < kColumns; ++j) {
        const double cotangent = static_cast<double>(dout(pick.item, j));
        const double w = static_cast<double>(static_cast<T>(pick.weight));
        worst = support::larger(worst, std::abs(w * cotangent - static_cast<double>(dz(slot, j))));
        dweight[order[s]] += cotangent * static_cast<double>(z(slot, j));
        dx_expected[static_cast<std::size_t>(pick.item * kColumns + j)] += static_cast<double>(dslots(slot, j));
      }
    }
    for (std::size_t p = 0; p < dweight.size(); ++p)
      worst = support::larger(worst, std::abs(dweight[p] - static_cast<double>(d.weight.data()[p])));
    for (std::size_t i = 0; i < dx_expected.size(); ++i)
      worst = support::larger(worst, std::abs(dx_expected[i] - static_cast<double>(dx.data()[i])));
    CHECK(worst <= 4 * tolerance<T>);

    for (Index s = static_cast<Index>(order.size()); s < S; ++s)  // never written
      for (Index j = 0; j < kColumns; ++j) CHECK(dz(s, j) == dz_before(s, j));
    for (std::size_t p = 0; p < c.picks.size(); ++p)
      if (c.picks[p].expert < 0) CHECK(d.weight.data()[p] == 0);
  }
}

// <combine(z; w), dout> is linear in z and in w, so its derivatives equal difference quotients of any step.
TEST_CASE("SparsePlan: dispatch and combine are adjoint to each other") {
  Cpu::Context ctx(1);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    SparsePlan<double, B> plan;
    build(ctx, plan, c.items, c.experts, c.picks);
    const Index S = static_cast<Index>(c.picks.size());
    auto z = matrix<double>(S, kColumns, 1);
    const auto dout = matrix<double>(c.items, kColumns, 2), direction = matrix<double>(S, kColumns, 3);
    const auto weight_direction = random_vector<double>(S, 4);
    auto value = [&] {
      Tensor<double, 2, B> out(c.items, kColumns);
      plan.combine(ctx, z, out);
      double f = 0;
      for (Index i = 0; i < out.size(); ++i) f += out.data()[i] * dout.data()[i];
      return f;
    };
    const auto mark = ctx.mark();
    auto d = plan.grad(ctx);
    Tensor<double, 2, B> dz(S, kColumns);
    set_zero(ctx, dz);
    plan.combine_backward(ctx, z, dout, dz, d);

    const double at = value();
    for (Index i = 0; i < z.size(); ++i) z.data()[i] += direction.data()[i];
    double along = 0;
    for (Index i = 0; i < z.size(); ++i) along += dz.data()[i] * direction.data()[i];
    CHECK(value() - at == doctest::Approx(along).epsilon(1e-11));

    for (Index i = 0; i < z.size(); ++i) z.data()[i] -= direction.data()[i];
    double along_weight = 0;
    for (Index p = 0; p < S; ++p) {
      plan.weight(p) += weight_direction[static_cast<std::size_t>(p)];
      along_weight += d.weight(p) * weight_direction[static_cast<std::size_t>(p)];
    }
    CHECK(value() - at == doctest::Approx(along_weight).epsilon(1e-11));
  }
}

TEST_CASE("SparsePlan: bfloat16 slots give the bits of equal floats") {
  Cpu::Context ctx(2);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    SparsePlan<float, B> plan;
    build(ctx, plan, c.items, c.experts, c.picks);
    const Index slots = static_cast<Index>(c.picks.size());
    auto z = matrix<float>(slots, kColumns, 5);
    Tensor<Bfloat16, 2, B> stored(slots, kColumns);
    for (Index i = 0; i < z.size(); ++i) z.data()[i] = stored.data()[i] = Bfloat16::from(z.data()[i]);
    const auto same = [&] { return matrix<float>(c.items, kColumns, 6); };
    auto out = same(), from_stored = same(), dx = same(), dx_from_stored = same();
    plan.combine(ctx, z, out);
    plan.combine<Bfloat16>(ctx, stored, from_stored);
    const auto mark = ctx.mark();
    auto d = plan.grad(ctx);
    plan.dispatch_backward(ctx, out, z, dx, d);
    plan.dispatch_backward<Bfloat16>(ctx, out, stored, dx_from_stored, d);
    Index differ = 0;
    for (Index i = 0; i < out.size(); ++i)
      differ += out.data()[i] != from_stored.data()[i] || dx.data()[i] != dx_from_stored.data()[i];
    CHECK(differ == 0);
  }
}

TEST_CASE("SparsePlan: the number of threads changes no bit") {
  const Case c = cases()[4];
  std::vector<std::vector<float>> outcomes;
  for (const int threads : {1, 2, 3}) {
    Cpu::Context ctx(threads);
    SparsePlan<float, B> plan;
    build(ctx, plan, c.items, c.experts, c.picks);
    const auto z = matrix<float>(static_cast<Index>(c.picks.size()), kColumns, 5);
    Tensor<float, 2, B> out(c.items, kColumns);
    plan.combine(ctx, z, out);
    outcomes.emplace_back(out.data(), out.data() + out.size());
  }
  CHECK(outcomes[0] == outcomes[1]);
  CHECK(outcomes[0] == outcomes[2]);
}

TEST_CASE("SparsePlan: an item sums its slots by ascending expert") {
  Cpu::Context ctx(1);
  SparsePlan<float, B> plan;
  const float big = 16777216.0f;  // 2^24: the next float is 2 away, so the order of sums shows
  build(ctx, plan, 1, 3, {{0, 2, 1.0}, {0, 0, 1.0}, {0, 1, 1.0}});
  Tensor<float, 2, B> z(3, 1), out(1, 1);
  z(0, 0) = 1, z(1, 0) = big, z(2, 0) = -big;
  plan.combine(ctx, z, out);
  CHECK(out(0, 0) == 0);  // (1 + big) - big loses the 1; pick order and descending order keep it
}

TEST_CASE("SparsePlan: experts read the items without a copy") {
  Cpu::Context ctx(1);
  SparsePlan<double, B> plan;
  build(ctx, plan, 3, 2, {{0, 1, 1.0}, {1, 0, 1.0}, {2, 1, 1.0}});
  const auto x = matrix<double>(3, kColumns, 1);
  const Dispatched<double, B> there = plan.dispatch(ctx, x), back = std::as_const(plan).dispatched(x);
  CHECK(there.x.data() == x.data());
  CHECK(back.x.data() == x.data());
  CHECK(there.groups.row(0) == 1);
  CHECK(back.groups.row(1) == 0);
  CHECK(back.groups.row(2) == 2);
}

TEST_CASE("SparsePlan: building a plan again reuses its memory") {
  Cpu::Context ctx(1);
  SparsePlan<double, B> plan;
  const auto all = cases();
  build(ctx, plan, all[4].items, all[4].experts, all[4].picks);
  const Index* const picks = plan.pick.data();
  const double* const weights = plan.weight.data();
  build(ctx, plan, all[1].items, all[1].experts, all[1].picks);
  CHECK(plan.pick.data() == picks);
  CHECK(plan.weight.data() == weights);
  CHECK(plan.items() == all[1].items);
  CHECK(plan.groups().offsets(plan.experts()) == static_cast<Index>(all[1].picks.size()));
}

TEST_CASE("SparsePlan: picks with wrong items or experts are refused") {
  Cpu::Context ctx(1);
  SparsePlan<double, B> plan;
  const auto build_all = [&] { build(ctx, plan, 3, 2, {{0, 1, 1.0}, {-1, 0, 1.0}, {2, 1, 1.0}}); };
  CHECK_THROWS_WITH_AS(
      build_all(), "SparsePlan.build: item: expected an item number of at least 0 for each pick, got negative numbers",
      ArgumentError);
  CHECK_THROWS_AS(build(ctx, plan, 3, 2, {{0, 1, 1.0}, {3, 0, 1.0}}), ArgumentError);
  CHECK_THROWS_AS(build(ctx, plan, 3, 2, {{0, 2, 1.0}}), ArgumentError);
  build(ctx, plan, 3, 2, {{0, 1, 1.0}, {-1, -1, 1.0}, {2, 1, 1.0}});  // a dropped pick may have the item -1
  CHECK(plan.item_offsets(3) == 2);

  plan.resize(2, 2, 2);
  plan.item(0) = 0, plan.item(1) = 1, plan.expert(0) = 1, plan.expert(1) = ~Index(0);
  CHECK_THROWS_WITH_AS(plan.build_complete(ctx),
                       "SparsePlan.build_complete: expert: expected an expert for each pick, because the selection "
                       "declares complete_picks, got dropped or unused picks",
                       ArgumentError);
  plan.resize(2, 2, 3);
  CHECK_THROWS_WITH_AS(plan.build_complete(ctx),
                       "SparsePlan.build_complete: picks: expected the same number for each item, because the "
                       "selection declares complete_picks, got 3 picks for 2 items",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(plan.resize(-1, 2, 2), "SparsePlan.resize: items: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_WITH_AS(plan.resize(2, -2, 2), "SparsePlan.resize: experts: expected at least 0, got -2", ArgumentError);
  CHECK_THROWS_WITH_AS(plan.resize(2, 2, -3), "SparsePlan.resize: picks: expected at least 0, got -3", ArgumentError);
}

TEST_CASE("SparsePlan: dispatch after resize throws until the plan is built") {
  Cpu::Context ctx(1);
  SparsePlan<double, B> plan;
  const Tensor<double, 2, B> x(3, 1);
  const std::string sentence =
      "SparsePlan.dispatch: plan: expected a built plan (the gate must call plan.build(ctx)), got a plan that is not "
      "built";
  CHECK_THROWS_WITH_AS(plan.dispatch(ctx, x), sentence.c_str(), ArgumentError);
  build(ctx, plan, 3, 2, {{0, 1, 1.0}, {1, 0, 1.0}, {2, 1, 1.0}});
  CHECK(plan.dispatch(ctx, x).groups.slots == 3);
  plan.resize(3, 2, 3);
  CHECK_THROWS_WITH_AS(plan.dispatch(ctx, x), sentence.c_str(), ArgumentError);
  for (Index n = 0; n < 3; ++n) plan.item(n) = n, plan.expert(n) = n % 2;
  plan.build_complete(ctx);
  CHECK(plan.dispatch(ctx, x).groups.slots == 3);
}

TEST_CASE("SlotWeights: reads the picks' weights; dropped picks have gradient 0") {
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

TEST_CASE("SlotWeights: without picks, weights are in slot order") {
  const std::vector<double> weight{5, 6};
  std::vector<double> dweight(2);
  const SlotWeights<double, Cpu> weights{weight, dweight};
  CHECK(weights(1) == 6);
  weights.set_adjoint(1, 3);
  CHECK(dweight == std::vector<double>{0, 3});
}
