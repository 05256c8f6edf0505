#include "gatefold/gate/selection/capacity.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Noise noise{Random{Seed{5}, 2}};

/// Returns the expert of each pick, ~e if it is dropped, as Capacity documents. An expert keeps picks by choice, then
/// (batch_priority) by descending weight of the item's first choice, then by item, up to its capacity (1). `dense` has
/// the picks before any were dropped.
template <class S>
Ids placed(const Capacity<S>& policy, const SparsePlan<double, Cpu>& dense, Index k, const std::vector<double>& valid) {
  const Index items = dense.items(), size = policy.group > 0 ? policy.group : items;
  Ids expert(dense.expert.data(), dense.expert.data() + dense.expert.size());
  for (Index first = 0; first < items; first += size) {
    Ids members;
    for (Index n = first; n < std::min(first + size, items); ++n)
      if (valid.empty() || valid[static_cast<std::size_t>(n)] != 0) members.push_back(n);
    double most = double(policy.slots);
    if (policy.slots == 0) {
      most = std::ceil(double(members.size()) * double(k) * policy.factor / double(dense.experts()));
      while (std::fmod(most, double(policy.multiple_of)) != 0) most += 1;
    }
    if (policy.batch_priority)
      std::stable_sort(members.begin(), members.end(),
                       [&](Index a, Index b) { return dense.weight(a * k) > dense.weight(b * k); });
    std::map<Index, double> used;
    for (Index j = 0; j < k; ++j)
      for (const Index n : members)
        if ((used[dense.expert(n * k + j)] += 1) > most)
          expert[static_cast<std::size_t>(n * k + j)] = ~dense.expert(n * k + j);
  }
  return expert;
}
Index dropped(const Ids& experts) {
  return static_cast<Index>(std::count_if(experts.begin(), experts.end(), [](Index e) { return e < 0; }));
}
/// Returns ranks that prefer the first experts, so that these overflow.
Tensor<double, 2, Cpu> uneven(Index items, Index experts) {
  auto rank = random_ranks(items, experts, 8);
  for (Index n = 0; n < items; ++n)
    for (Index e = 0; e < experts; ++e) rank(n, e) -= 2 * double(e) / double(experts);
  return rank;
}

}  // namespace

TEST_CASE("Capacity (1): room equals the published numbers (V-MoE)") {
  CHECK(Capacity<>{.factor = 1.05}.room(400, 2, 8) == 108);
  CHECK(Capacity<>{.factor = 4}.room(400, 2, 8) == 400);
  CHECK(Capacity<>{.factor = 1.05, .multiple_of = 1}.room(400, 2, 8) == 105);
  CHECK(Capacity<>{.factor = 1, .multiple_of = 1}.room(10, 1, 3) == 4);
  CHECK(Capacity<>{.factor = 1, .multiple_of = 4}.room(0, 1, 3) == 0);
  CHECK(Capacity<>{.factor = infinity}.room(399, 2, 8) == 400);
  CHECK(Capacity<>{.slots = 7}.room(400, 2, 8) == 7);
}

TEST_CASE("Capacity (1): room is exact despite rounding of the factor") {
  CHECK(Capacity<>{.factor = 1.1, .multiple_of = 1}.room(100, 1, 10) == 11);
  for (Index tenths = 1; tenths <= 10; ++tenths)
    for (Index items = 1; items <= 200; ++items)
      for (const Index experts : {1, 2, 3, 5, 7, 10, 16}) {
        const Index places = (items * tenths + 10 * experts - 1) / (10 * experts);
        if (Capacity<>{.factor = double(tenths) / 10, .multiple_of = 1}.room(items, 1, experts) != places) {
          CAPTURE(tenths);
          CAPTURE(items);
          CAPTURE(experts);
          CHECK(Capacity<>{.factor = double(tenths) / 10, .multiple_of = 1}.room(items, 1, experts) == places);
        }
      }
}

TEST_CASE("Capacity (2): renormalising keeps the sum of an item's weights") {
  for (const bool of_selection : {false, true}) {
    CAPTURE(of_selection);
    const TopK top{.k = 3, .renormalise = of_selection};
    const auto dense = select(top, uneven(20, 5));
    const auto kept = select(Capacity<>{.selection = top, .slots = 8}, uneven(20, 5));
    const auto scaled = select(Capacity<>{.selection = top, .slots = 8, .renormalise = true}, uneven(20, 5));
    CHECK(scaled.experts() == kept.experts());
    REQUIRE(dropped(kept.experts()) > 10);
    Index changed = 0;
    for (Index n = 0; n < 20; ++n) {
      double all = 0, of_kept = 0;
      for (Index p = 3 * n; p < 3 * n + 3; ++p) {
        all += dense.plan.weight(p);
        if (kept.plan.expert(p) >= 0) of_kept += dense.plan.weight(p);
      }
      for (Index p = 3 * n; p < 3 * n + 3; ++p) {
        if (kept.plan.expert(p) < 0) continue;
        CHECK(kept.plan.weight(p) == dense.plan.weight(p));
        CHECK(scaled.plan.weight(p) == doctest::Approx(dense.plan.weight(p) * all / of_kept).epsilon(1e-14));
        changed += scaled.plan.weight(p) > kept.plan.weight(p);
      }
    }
    CHECK(changed > 5);
  }
}

TEST_CASE("Capacity (2): without drops the weights keep their bits") {
  const auto kept = select(Capacity<>{.selection = {.k = 2}, .slots = 20}, uneven(20, 5));
  const auto scaled = select(Capacity<>{.selection = {.k = 2}, .slots = 20, .renormalise = true}, uneven(20, 5));
  CHECK(values(scaled.plan.weight) == values(kept.plan.weight));
}

TEST_CASE("Capacity (2): an item without kept picks gets 0") {
  const auto scaled = select(Capacity<>{.selection = {.k = 1}, .slots = 1, .renormalise = true}, equal_ranks(3, 2));
  CHECK(scaled.experts() == Ids{0, ~0, ~0});
  CHECK(scaled.plan.weight(0) == 1);
  const auto zero = select(Capacity<>{.selection = {.k = 2, .renormalise = false}, .slots = 1, .renormalise = true},
                           matrix<double>({{1000, 0}, {1000, 0}}));  // the second q underflows to 0
  for (const double w : values(zero.plan.weight)) CHECK(std::isfinite(w));
}

TEST_CASE("Capacity (2): gradients with dropped picks equal finite differences") {
  Cpu::Context ctx(1);
  const auto checked = [&](const auto& selection) {
    const Mixture layer{ComposedGate<LinearScores, Independent, std::remove_cvref_t<decltype(selection)>>{
                            .scores = {.experts = 4}, .selection = selection},
                        Linear{.model_dim = 4}};
    const auto report = check::gradients(ctx, layer, {.items = 9});
    CHECK_MESSAGE(report, report.str());
    auto p = pass<double>(ctx, layer, 9);
    p.forward();
    const auto& plan = p.saved.branch.plan;
    CHECK(plan.offsets(4) < plan.expert.size());
  };
  for (const bool of_selection : {false, true})
    checked(Capacity<>{.selection = {.k = 3, .renormalise = of_selection}, .slots = 5, .renormalise = true});
  checked(Capacity<SigmoidBias>{.selection = {.k = 3, .scale = 2.5}, .slots = 5, .renormalise = true});
}

TEST_CASE("Capacity: batch priority orders by q, not by the weights") {
  const auto rank = [] { return matrix<double>({{2, 1, 0}, {5, 0, 1}, {3, 1, 0}}); };
  for (const bool renormalise : {false, true})
    CHECK(select(Capacity<>{.selection = {.k = 1, .renormalise = renormalise}, .slots = 1, .batch_priority = true},
                 rank())
              .experts() == Ids{~0, 0, ~0});
  // With noise the weights are the softmax of the noisy values, as in V-MoE.
  Capacity<NoisyTopK<>> policy{
      .selection = NoisyTopK<>::vmoe({.k = 2}), .factor = 0.6, .multiple_of = 1, .batch_priority = true};
  policy.selection.deviation = 8;
  const auto all = select(policy.selection, uneven(23, 4), noise);
  const auto s = select(policy, uneven(23, 4), noise);
  const auto expected = placed(policy, all.plan, 2, {});
  CHECK(s.experts() == expected);
  CHECK(s.experts() != select(policy, uneven(23, 4)).experts());
  policy.selection.renormalise = true;
  CHECK(select(policy, uneven(23, 4), noise).experts() == expected);
}

TEST_CASE("Capacity: all first choices come before any second choice") {
  const std::vector<double> none, mask{1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1};
  for (const Index experts : {1, 4, 257})
    for (const Index k : {Index(1), std::min<Index>(3, experts), std::min<Index>(experts, 4)})
      for (const Index group : {0, 1, 5, 100})
        for (const bool batch_priority : {false, true})
          for (const auto& valid : {none, mask}) {
            CAPTURE(experts);
            CAPTURE(k);
            CAPTURE(group);
            const Capacity<> policy{.selection = {.k = k, .renormalise = false},
                                    .factor = 0.6,
                                    .multiple_of = 2,
                                    .group = group,
                                    .batch_priority = batch_priority};
            const auto all = select(policy.selection, uneven(23, experts));
            const auto s = select(policy, uneven(23, experts), {}, valid);
            const auto expected = placed(policy, all.plan, k, valid);
            CHECK(s.experts() == expected);
            if (experts == 4 && group == 0) CHECK(dropped(expected) > 3);
            CHECK(same_bits(values(s.plan.weight), values(all.plan.weight)));
            CHECK(s.plan.offsets(experts) == 23 * k - dropped(expected));
          }
}

TEST_CASE("Capacity: a later first choice displaces an earlier second choice") {
  const auto rank = [] { return matrix<double>({{2, 1, 0}, {2, 0, 1}, {1, 3, 0}}); };
  const TopK two{.k = 2, .renormalise = false};
  CHECK(select(two, rank()).experts() == Ids{0, 1, 0, 2, 1, 0});
  CHECK(select(Capacity<>{.selection = two, .slots = 1}, rank()).experts() == Ids{0, ~1, ~0, 2, 1, ~0});
  // The first choice of item 2 has the largest q; the first choices of items 0 and 1 have equal q.
  CHECK(select(Capacity<>{.selection = two, .slots = 1, .batch_priority = true}, rank()).experts() ==
        Ids{0, ~1, ~0, 2, 1, ~0});
  auto surer = rank();
  surer(1, 0) = 5;
  CHECK(select(Capacity<>{.selection = two, .slots = 1, .batch_priority = true}, std::move(surer)).experts() ==
        Ids{~0, ~1, 0, 2, 1, ~0});
}

TEST_CASE("Capacity: a group is routed like a separate batch") {
  for (const bool batch_priority : {false, true}) {
    const Capacity<> policy{
        .selection = {.k = 2}, .factor = 0.7, .multiple_of = 1, .group = 6, .batch_priority = batch_priority};
    const auto all = select(policy, uneven(20, 4));
    for (Index first = 0; first < 20; first += 6) {
      const Index count = std::min<Index>(6, 20 - first);
      Tensor<double, 2, Cpu> part(count, 4);
      for (Index i = 0; i < part.size(); ++i) part.data()[i] = all.rank.data()[first * 4 + i];
      const auto alone = select(policy, std::move(part));
      const auto experts = all.experts();
      CHECK(alone.experts() == Ids(experts.begin() + first * 2, experts.begin() + (first + count) * 2));
      CHECK(dropped(alone.experts()) > 0);
    }
  }
}

TEST_CASE("Capacity: a capacity that drops no pick changes nothing") {
  const auto all = select(TopK{.k = 2}, uneven(20, 4));
  const auto roomy = select(Capacity<>{.factor = 4}, uneven(20, 4));
  CHECK(roomy.experts() == all.experts());
  CHECK(values(roomy.plan.offsets) == values(all.plan.offsets));
}

TEST_CASE("Capacity: the number of threads changes no pick") {
  const Capacity<> policy{.selection = {.k = 2}, .factor = 0.8, .group = 700, .batch_priority = true};
  const auto one = select(policy, uneven(20000, 5)), three = select(policy, uneven(20000, 5), {}, {}, 3);
  CHECK(one.experts() == three.experts());
  CHECK(values(one.plan.pick) == values(three.plan.pick));
}

TEST_CASE("Capacity: gradients with dropped picks agree for TopK, NoisyTopK") {
  const auto agrees = [](auto selection, const auto& extra) {
    using Gate = ComposedGate<LinearScores, Independent, decltype(selection)>;
    const std::vector<double> mask{1, 1, 0, 1, 1, 1, 0, 1, 1};
    GateAlone<Gate> a({.scores = {.experts = 3}, .selection = selection}, 9, {.selection = extra, .valid = mask});
    Index lost = 0;
    for (Index p = 0; p < a.plan.expert.size(); ++p) lost += a.plan.expert(p) < 0;
    CHECK(lost > a.plan.expert.size() / 9 * 2);
    const auto report = a.gradients();
    CHECK_MESSAGE(report, report.str());
    CHECK(a.keeps_promises());
  };
  for (const bool renormalise : {false, true})
    agrees(Capacity<>{.selection = {.k = 2, .renormalise = renormalise}, .slots = 2, .batch_priority = renormalise},
           Nothing<double, Cpu>{});
  NoisyTopK<> noisy;
  noisy.initial = Initial::normal(0.5);
  agrees(Capacity<NoisyTopK<>>{.selection = noisy, .slots = 3, .batch_priority = true}, noise);
}

TEST_CASE("Capacity: forwards options, checks and noise of its selection") {
  const Capacity policy{NoisyTopK<>{}, 2.0};
  const auto s = select(policy, uneven(6, 4), noise);
  CHECK(s.policy.selection.model_dim == 3);
  CHECK(s.policy.selection.experts == 4);
  CHECK(s.params.noise.size() == 12);
  CHECK(s.policy.noisy(s.saved).value.data() == s.saved.selection.value.data());
  CHECK(message_of([&] { s.policy.validate(Params<NoisyTopK<>, double, Cpu>{}, 6, noise); }) ==
        "NoisyTopK: params.noise: expected [3, 4], got [0, 0]");
  CHECK(Capacity<NoisyTopK<>>::shows_noise);
  CHECK_FALSE(Capacity<TopK>::shows_noise);
  CHECK(Capacity<TopK>{}.noisy(Saved<Capacity<TopK>, double, Cpu>{}).value.empty());
  CHECK(Capacity{TopK{}}.factor == 1.05);
}

TEST_CASE("Capacity: empty batches, one expert, equal logits and NaN work") {
  const auto none = select(Capacity<>{.group = 3, .batch_priority = true}, random_ranks(0, 4));
  CHECK(none.plan.expert.size() == 0);
  CHECK(none.plan.offsets(4) == 0);
  const Capacity<> first{.selection = {.k = 1}, .slots = 2};
  CHECK(select(first, random_ranks(3, 1)).experts() == Ids{0, 0, ~0});
  for (const bool batch_priority : {false, true}) {
    const Capacity<> policy{.selection = {.k = 1, .renormalise = false}, .slots = 2, .batch_priority = batch_priority};
    // Equal logits: ties go to the lower expert and the lower item.
    CHECK(select(policy, equal_ranks(4, 3)).experts() == Ids{0, 0, ~0, ~0});
    // With batch priority, an item whose q is NaN comes last.
    CHECK(select(policy, matrix<double>({{quiet_nan, quiet_nan}, {2, 1}, {3, 1}})).experts() ==
          (batch_priority ? Ids{~0, 0, 0} : Ids{0, 0, ~0}));
    auto rank = random_ranks(6, 4);
    for (Index n = 0; n < 6; ++n) rank(n, 2) = 9;
    const auto hot = select(policy, std::move(rank));
    CHECK(hot.plan.offsets(2) == 0);
    CHECK(hot.plan.offsets(3) == 2);
    CHECK(hot.plan.offsets(4) == 2);
    CHECK(dropped(hot.experts()) == 4);
  }
}

TEST_CASE("Capacity: wrong options throw") {
  CHECK(message_of([] { Capacity<>{.factor = 0}.validate_options(2); }) ==
        "Capacity: factor: expected more than 0, got 0");
  CHECK(message_of([] { Capacity<>{.multiple_of = 0}.validate_options(2); }) ==
        "Capacity: multiple_of: expected at least 1, got 0");
  CHECK(message_of([] { Capacity<>{.slots = -1}.validate_options(2); }) ==
        "Capacity: slots: expected at least 0, got -1");
  CHECK(message_of([] { Capacity<>{.group = -1}.validate_options(2); }) ==
        "Capacity: group: expected at least 0, got -1");
  CHECK(message_of([] { Capacity<>{.selection = {.k = 3}}.validate_options(2); }) ==
        "TopK: k: expected 1 <= k <= experts = 2, got 3");
}
