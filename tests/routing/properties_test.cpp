#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/sparse_plan.hpp"

// Checks properties of every plan on random inputs of RapidCheck. If a check fails, RapidCheck searches for a smaller
// input that also fails. Seeds are fixed, so that a run can be repeated.

using namespace gatefold;
using B = Cpu;
using Ids = std::vector<Index>;

namespace {

/// Returns whether a property holds for `cases` random inputs.
template <class P>
bool holds(const P& property, int cases = 400) {
  rc::detail::TestParams params;
  params.seed = 20231;
  params.maxSuccess = cases;
  params.maxSize = 40;
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  if (result.template is<rc::detail::SuccessResult>()) return true;
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  FAIL_CHECK(text.str());
  return false;
}
Index draw(Index from, Index to) { return *rc::gen::inRange<Index>(from, to + 1); }

/// Returns ranks on a coarse grid, so that ties are common; some are infinite or NaN.
Tensor<double, 2, B> ranks(Index items, Index experts) {
  Tensor<double, 2, B> r(items, experts);
  for (Index i = 0; i < r.size(); ++i) {
    const int drawn = *rc::gen::inRange(-20, 26);
    r.data()[i] = drawn < 20   ? drawn / 4.0
                  : drawn < 22 ? std::numeric_limits<double>::infinity()
                  : drawn < 24 ? -std::numeric_limits<double>::infinity()
                               : std::numeric_limits<double>::quiet_NaN();
  }
  return r;
}
Tensor<double, 2, B> numbers(Index items, Index experts) {
  Tensor<double, 2, B> r(items, experts);
  for (Index i = 0; i < r.size(); ++i) r.data()[i] = *rc::gen::inRange(-20, 20) / 4.0;
  return r;
}

struct Chosen {
  Cpu::Context ctx{2, true};
  Tensor<double, 2, B> rank, q, x;
  SparsePlan<double, B> plan;
  template <class S>
  Chosen(const S& selection, Tensor<double, 2, B> of, const std::vector<double>& valid = {}) : rank(std::move(of)) {
    q.resize(rank.extent(0), rank.extent(1));
    x.resize(rank.extent(0), 1);
    fill(ctx, x.view(), 1.0);
    B::for_rows(ctx, rank.extent(0), functor::Softmax<double, B>{rank, q});
    Candidates<double, B> candidates{x, rank, q};
    candidates.valid = valid;
    Nothing<double, B> none;
    Saved<S, double, B> saved;
    selection.forward(ctx, none, candidates, plan, saved, Extra<S, double, B>{});
  }
};

/// Checks that the parts of a plan agree with its picks: every kept pick has one slot, slots are sorted by expert and
/// then by pick, and item_slots lists the slots of each item in ascending order.
void agree(const SparsePlan<double, B>& plan) {
  const Index picks = plan.expert.size(), kept = plan.offsets(plan.experts());
  std::map<Index, Index> counts;
  Index alive = 0;
  for (Index p = 0; p < picks; ++p) {
    if (plan.expert(p) < 0) continue;
    ++counts[plan.expert(p)];
    ++alive;
  }
  RC_ASSERT(kept == alive);
  RC_ASSERT(plan.offsets(0) == 0);
  for (Index e = 0; e < plan.experts(); ++e) RC_ASSERT(plan.offsets(e + 1) - plan.offsets(e) == counts[e]);
  std::set<Index> seen;
  for (Index s = 0; s < kept; ++s) {
    const Index p = plan.pick(s);
    RC_ASSERT(seen.insert(p).second);  // no pick occurs twice
    RC_ASSERT(plan.groups().expert(s) == plan.expert(p));
    RC_ASSERT(plan.rows(s) == plan.item(p));
    if (s > plan.offsets(plan.expert(p))) RC_ASSERT(plan.pick(s - 1) < p);
  }
  std::set<Index> slots;
  RC_ASSERT(plan.item_offsets(plan.items()) == kept);
  for (Index n = 0; n < plan.items(); ++n)
    for (Index i = plan.item_offsets(n); i < plan.item_offsets(n + 1); ++i) {
      RC_ASSERT(slots.insert(plan.item_slots(i)).second);
      RC_ASSERT(plan.rows(plan.item_slots(i)) == n);
      if (i > plan.item_offsets(n)) RC_ASSERT(plan.item_slots(i - 1) < plan.item_slots(i));
    }
}
/// Returns whether rank a of expert i comes before rank b of expert j. Larger ranks come first and NaN comes last. Ties
/// go to the lower index.
bool before(double a, Index i, double b, Index j) {
  if (std::isnan(a) != std::isnan(b)) return std::isnan(b);
  return std::isnan(a) || a == b ? i < j : a > b;
}

}  // namespace

TEST_CASE("property: all parts of a plan are consistent") {
  CHECK(holds([] {
    const Index items = draw(0, 30), experts = draw(1, 12), picks = items == 0 ? 0 : draw(0, 60);
    Cpu::Context ctx(static_cast<int>(draw(1, 3)), true);
    SparsePlan<double, B> plan;
    plan.resize(items, experts, picks);
    for (Index p = 0; p < picks; ++p) {
      const Index e = draw(0, experts - 1), fate = draw(0, 5);
      plan.item(p) = draw(0, items - 1);
      plan.expert(p) = fate == 0 ? ~e : fate == 1 ? no_pick : e;
      plan.weight(p) = 1;
    }
    plan.build(ctx);
    agree(plan);
  }));
}

TEST_CASE("property: TopK picks the k best, with normalised weights") {
  CHECK(holds([] {
    const Index items = draw(0, 12), experts = draw(1, 12), k = draw(1, experts);
    const bool wild = draw(0, 1) == 1, renormalise = draw(0, 1) == 1;
    const Chosen c(TopK{.k = k, .renormalise = renormalise}, wild ? ranks(items, experts) : numbers(items, experts));
    agree(c.plan);
    RC_ASSERT(c.plan.expert.size() == items * k);
    for (Index n = 0; n < items; ++n) {
      Ids taken(c.plan.expert.data() + n * k, c.plan.expert.data() + n * k + k);
      for (std::size_t j = 0; j < taken.size(); ++j) {
        RC_ASSERT((0 <= taken[j] && taken[j] < experts));
        if (j > 0) RC_ASSERT(before(c.rank(n, taken[j - 1]), taken[j - 1], c.rank(n, taken[j]), taken[j]));
      }
      for (Index e = 0; e < experts; ++e)  // no expert that was left out comes before the last one that was taken
        if (std::find(taken.begin(), taken.end(), e) == taken.end())
          RC_ASSERT(before(c.rank(n, taken.back()), taken.back(), c.rank(n, e), e));
      if (wild) continue;
      double sum = 0, of_q = 0;
      for (Index j = 0; j < k; ++j) {
        const double w = c.plan.weight(n * k + j), q = c.q(n, c.plan.expert(n * k + j));
        RC_ASSERT(w > 0);
        if (j > 0) RC_ASSERT(w <= c.plan.weight(n * k + j - 1));
        if (!renormalise) RC_ASSERT(w == q);
        sum += w;
        of_q += q;
      }
      RC_ASSERT(std::abs(sum - (renormalise ? 1 : of_q)) <= 1e-14);
    }
  }));
}

TEST_CASE("property: K = E sends items to all experts") {
  CHECK(holds([] {
    const Index items = draw(0, 20), experts = draw(1, 10);
    const Chosen c(TopK{.k = experts, .renormalise = draw(0, 1) == 1}, ranks(items, experts));
    agree(c.plan);
    for (Index e = 0; e < experts; ++e) {
      RC_ASSERT(c.plan.offsets(e + 1) - c.plan.offsets(e) == items);
      for (Index n = 0; n < items; ++n) RC_ASSERT(c.plan.rows(c.plan.offsets(e) + n) == n);
    }
  }));
}

TEST_CASE("property: capacity drops picks only if their expert is full") {
  CHECK(holds([] {
    const Index items = draw(1, 30), experts = draw(1, 6), k = draw(1, experts);
    Capacity<TopK> policy{TopK{.k = k}};
    policy.factor = draw(0, 4) == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(draw(1, 5)) / 2;
    policy.multiple_of = draw(1, 4);
    policy.slots = draw(0, 2) == 0 ? draw(1, 5) : 0;
    policy.group = draw(0, 1) == 0 ? 0 : draw(1, items);
    policy.batch_priority = draw(0, 1) == 1;
    std::vector<double> valid;
    if (draw(0, 1) == 1)
      for (Index n = 0; n < items; ++n) valid.push_back(draw(0, 3) == 0 ? 0 : 1);
    const auto is_item = [&](Index n) { return valid.empty() || valid[static_cast<std::size_t>(n)] != 0; };
    auto of = numbers(items, experts);
    Tensor<double, 2, B> same(items, experts);
    std::copy(of.data(), of.data() + of.size(), same.data());
    const Chosen c(policy, std::move(of), valid), all(TopK{.k = k}, std::move(same), valid);
    agree(c.plan);
    const Index size = policy.group > 0 ? policy.group : items;
    for (Index first = 0; first < items; first += size) {
      const Index end = std::min(items, first + size);
      Index members = 0;
      for (Index n = first; n < end; ++n) members += is_item(n);
      const Index room = policy.room(members, k, experts);
      for (Index e = 0; e < experts; ++e) {
        Index wanted = 0, got = 0, last_kept = -1, first_dropped = k;
        for (Index n = first; n < end; ++n)
          for (Index j = 0; j < k; ++j) {
            const Index p = n * k + j, chose = all.plan.expert(p);
            RC_ASSERT(functor::chosen(c.plan.expert(p)) == chose);
            RC_ASSERT(c.plan.weight(p) == all.plan.weight(p));  // dropped picks keep their weight
            if (chose != e) continue;
            if (!is_item(n)) {
              RC_ASSERT(c.plan.expert(p) == e);  // padding uses no capacity and is not dropped
              continue;
            }
            ++wanted;
            if (c.plan.expert(p) >= 0) {
              ++got;
              last_kept = std::max(last_kept, j);
            } else {
              first_dropped = std::min(first_dropped, j);
            }
          }
        RC_ASSERT(got == std::min(wanted, room));
        if (got < wanted) RC_ASSERT(last_kept <= first_dropped);  // earlier choices come before later ones
      }
    }
  }));
}

TEST_CASE("property: ExpertChoice gives every expert its number of best items") {
  CHECK(holds([] {
    const Index items = draw(1, 30), experts = draw(1, 8);
    const ExpertChoice policy{.factor = static_cast<double>(draw(1, 8)) / 2};
    std::vector<double> valid;
    if (draw(0, 1) == 1)
      for (Index n = 0; n < items; ++n) valid.push_back(draw(0, 3) == 0 ? 0 : 1);
    const Chosen c(policy, numbers(items, experts), valid);
    agree(c.plan);
    Index members = 0;
    for (Index n = 0; n < items; ++n) members += valid.empty() || valid[static_cast<std::size_t>(n)] != 0;
    for (Index e = 0; e < experts; ++e) {
      std::set<Index> taken;
      double least = std::numeric_limits<double>::infinity();
      for (Index s = c.plan.offsets(e); s < c.plan.offsets(e + 1); ++s) {
        RC_ASSERT(taken.insert(c.plan.rows(s)).second);
        RC_ASSERT((valid.empty() || valid[static_cast<std::size_t>(c.plan.rows(s))] != 0));
        RC_ASSERT(c.plan.weight(c.plan.pick(s)) == c.q(c.plan.rows(s), e));
        least = std::min(least, c.q(c.plan.rows(s), e));
      }
      RC_ASSERT(static_cast<Index>(taken.size()) == policy.room(members, experts));
      for (Index n = 0; n < items; ++n)
        if (!taken.count(n) && (valid.empty() || valid[static_cast<std::size_t>(n)] != 0))
          RC_ASSERT(c.q(n, e) <= least * (1 + 1e-12));  // the choice uses log q, which rounds differently
    }
  }));
}

TEST_CASE("property: HashGate always sends a token to the same experts") {
  CHECK(holds([] {
    const Index items = draw(0, 30), experts = draw(1, 10), k = draw(1, experts);
    Ids ids;
    for (Index n = 0; n < items; ++n) ids.push_back(draw(-1, 12));
    const HashGate gate{.count = experts, .k = k, .seed = {static_cast<std::uint64_t>(draw(0, 5))}};
    Cpu::Context ctx(2, true);
    Tensor<double, 2, B> x(items, 1);
    SparsePlan<double, B> plan;
    Nothing<double, B> none;
    gate.forward(ctx, none, x, plan, none, HashGate::Extra<double, B>{View<const Index, 1, B>(ids)});
    agree(plan);
    std::map<Index, Ids> where;
    for (Index n = 0; n < items; ++n) {
      const Ids experts_of(plan.expert.data() + n * k, plan.expert.data() + n * k + k);
      for (Index j = 0; j < k; ++j) RC_ASSERT(plan.weight(n * k + j) == 1.0 / static_cast<double>(k));
      const Index id = ids[static_cast<std::size_t>(n)];
      if (id < 0) {
        RC_ASSERT(std::all_of(experts_of.begin(), experts_of.end(), [](Index e) { return e < 0; }));
        continue;
      }
      RC_ASSERT(static_cast<Index>(std::set<Index>(experts_of.begin(), experts_of.end()).size()) == k);
      RC_ASSERT(where.emplace(id, experts_of).first->second == experts_of);
    }
  }));
}
