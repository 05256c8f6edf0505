#include "gatefold/gate/hash_gate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Ids = std::vector<Index>;

SparsePlan<double, Cpu> route(const HashGate& gate, const Ids& ids) {
  Cpu::Context ctx(2);
  const Tensor<double, 2, Cpu> x(static_cast<Index>(ids.size()), 1);
  SparsePlan<double, Cpu> plan;
  Nothing<double, Cpu> none;
  gate.forward(ctx, none, x, plan, none, HashGate::Extra<double, Cpu>{View<const Index, 1, Cpu>(ids)});
  return plan;
}
/// Equations (1) and (2) with a list of the experts that are left.
Ids experts_of(const HashGate& gate, Index id) {
  Ids left, picked;
  for (Index e = 0; e < gate.count; ++e) left.push_back(e);
  std::uint64_t hash = mix64(gate.seed.value ^ mix64(static_cast<std::uint64_t>(id)));
  for (Index j = 0; j < gate.k; ++j) {
    const auto at = left.begin() + static_cast<std::ptrdiff_t>(hash % left.size());
    picked.push_back(*at);
    left.erase(at);
    hash = mix64(hash);
  }
  return picked;
}

/// The ids of a batch for the conformance check.
struct WithIds {
  Ids ids{5, 3, 5, 0, 99, 3, 7};
  template <class T>
  HashGate::Extra<T, Cpu> operator()(Element<T>, Index first, Index count) const {
    return {View<const Index, 1, Cpu>(ids.data() + first, count)};
  }
};

}  // namespace

TEST_CASE("HashGate (1), (2): picks k distinct experts with weight 1/k") {
  const Ids ids{0, 1, 2, 3, 1000, 50256, 1, 0, Index(1) << 40};
  for (const Index count : {1, 2, 5, 257})
    for (const Index k : {Index(1), Index(2), count}) {
      if (k > count) continue;
      CAPTURE(count);
      CAPTURE(k);
      const HashGate gate{.count = count, .k = k, .seed = {7}};
      const auto plan = route(gate, ids);
      REQUIRE(plan.expert.size() == Index(ids.size()) * k);
      for (std::size_t n = 0; n < ids.size(); ++n) {
        const auto expected = experts_of(gate, ids[n]);
        for (Index j = 0; j < k; ++j) {
          const Index at = Index(n) * k + j;
          CHECK(plan.item(at) == Index(n));
          CHECK(plan.expert(at) == expected[std::size_t(j)]);
          CHECK(plan.weight(at) == 1.0 / double(k));
        }
        CHECK(std::set<Index>(expected.begin(), expected.end()).size() == std::size_t(k));
      }
    }
}

TEST_CASE("HashGate: tokens spread evenly; the seed changes the experts") {
  Ids ids(16000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Index>(i);
  const auto plan = route({.count = 8, .k = 2}, ids), other = route({.count = 8, .k = 2, .seed = {1}}, ids);
  double pairs[8][8] = {};
  Index moved = 0;
  for (Index n = 0; n < 16000; ++n) {
    ++pairs[plan.expert(2 * n)][plan.expert(2 * n + 1)];
    moved += plan.expert(2 * n) != other.expert(2 * n);
  }
  double chi = 0;  // 56 ordered pairs, 16000/56 expected each; random draws exceed 110 with probability 2·10⁻⁵
  for (int a = 0; a < 8; ++a)
    for (int b = 0; b < 8; ++b) {
      if (a == b) CHECK(pairs[a][b] == 0);
      if (a != b) chi += (pairs[a][b] - 16000.0 / 56) * (pairs[a][b] - 16000.0 / 56) / (16000.0 / 56);
    }
  CHECK(chi < 110);
  CHECK(std::abs(double(moved) / 16000 - 7.0 / 8) < 0.013);  // five standard deviations
}

TEST_CASE("HashGate: negative ids have no expert; NaN affects one item") {
  Cpu::Context ctx(1);
  Mixture mixture{HashGate{.count = 3, .k = 2}, Mlp<Relu>{.model_dim = 2, .hidden_dim = 4}};
  const Ids ids{4, -1, 4, 9};
  Params<decltype(mixture), double, Cpu> p = mixture.init<double, Cpu>(ctx, Seed{1});
  auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 2);
  Tensor<double, 2, Cpu> clean(4, 2), u(4, 2);
  Saved<decltype(mixture), double, Cpu> saved;
  const HashGate::Extra<double, Cpu> extra{View<const Index, 1, Cpu>(ids)};
  mixture.forward(ctx, p, x, clean, saved, extra);
  CHECK(saved.plan.offsets(3) == 6);
  for (const Index p : {2, 3}) CHECK(saved.plan.expert(p) == ~Index(0));  // a dropped pick of expert 0
  CHECK(clean(1, 0) == 0);
  CHECK(clean(0, 0) != 0);
  x(2, 0) = quiet_nan;
  mixture.forward(ctx, p, x, u, saved, extra);
  for (Index n = 0; n < 4; ++n) CHECK((n == 2 ? std::isnan(u(n, 0)) : u(n, 0) == clean(n, 0)));
}

TEST_CASE("HashGate: gradients and conformance; items are independent") {
  for (const Index k : {1, 2}) {
    const auto report = check::conformance<Cpu, double>(Mixture{HashGate{.count = 3, .k = k}, Linear{.model_dim = 3}},
                                                        {.items_are_independent = true}, WithIds{});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("HashGate: wrong options and shapes throw") {
  const Ids ids{1, 2};
  const HashGate::Extra<double, Cpu> extra{View<const Index, 1, Cpu>(ids)};
  const auto asks = [&](const HashGate& gate, Index items) {
    return message_of([&] { gate.validate(Nothing<double, Cpu>{}, items, extra); });
  };
  CHECK(asks({.count = 3}, 2) == "no ArgumentError");
  CHECK(asks({.count = 3, .k = 4}, 2) == "HashGate: k: expected 1 <= k <= count = 3, got 4");
  CHECK(asks({.count = 3, .k = 0}, 2) == "HashGate: k: expected 1 <= k <= count = 3, got 0");
  CHECK(asks({}, 2) == "HashGate: k: expected 1 <= k <= count = 0, got 1");
  CHECK(message_of([] {
          Cpu::Context ctx(1);
          (void)init_params<float, Cpu>(Mixture{HashGate{.count = 3, .k = 4}, Linear{.model_dim = 2}}, ctx, Seed{1});
        }) == "HashGate: k: expected 1 <= k <= count = 3, got 4");
  CHECK(asks({.count = 3}, 3) == "HashGate: extra.ids: expected [3], got [2]");
  CHECK(with_experts(HashGate{.k = 2}, 5).count == 5);
  CHECK(message_of([&] { route({.count = 3, .k = 4}, ids); }) == "HashGate: k: expected 1 <= k <= count = 3, got 4");
  CHECK(message_of([&] { route({}, ids); }) == "HashGate: k: expected 1 <= k <= count = 0, got 1");
  CHECK(message_of([] { (void)HashGate{.count = 3}.with_experts(5); }) ==
        "HashGate: count: expected 5 (the number of experts in the expert policy of the Mixture) or 0, got 3");
}
