#include "gatefold/gate/auxiliary/balance_loss.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "support/gate_outcome.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Equation (1) in loops.
double balance(const Outcome& o, double weight, bool per_pick) {
  const Index items = o.q.extent(0), experts = o.q.extent(1);
  double sum = 0;
  for (Index e = 0; e < experts; ++e) {
    double mine = 0, picks = 0, probability = 0, real = 0;
    for (Index p = 0; p < o.plan.expert.size(); ++p)
      if (o.is_valid(o.plan.item(p))) {
        picks += 1;
        mine += o.plan.expert(p) == e ? 1 : 0;
      }
    for (Index n = 0; n < items; ++n)
      if (o.is_valid(n)) {
        real += 1;
        probability += o.q(n, e);
      }
    sum += mine / picks * (probability / (per_pick ? picks : real));
  }
  return weight * double(experts) * sum;
}

}  // namespace

TEST_CASE("Balance (1): equals loops, per item and per pick") {
  for (const bool per_pick : {false, true})
    for (const auto& mask : {std::vector<double>{}, std::vector<double>{1, 0, 1, 1, 0, 1}}) {
      auto o = random_outcome(mask);
      CHECK(o.value(Balance{.weight = 0.3, .per_pick = per_pick}) ==
            doctest::Approx(balance(o, 0.3, per_pick)).epsilon(1e-14));
    }
}

TEST_CASE("Balance: perfect balance gives the weight, or weight / K") {
  for (const Index k : {1, 2}) {
    Cpu::Context ctx(1);
    std::vector<Index> picks;
    for (Index p = 0; p < 8 * k; ++p) picks.push_back(p % 4);
    Outcome o(constant_tensor<double>(ctx, 0.25, 8, 4), picks);
    CHECK(o.value(Balance{.weight = 0.01}) == doctest::Approx(0.01).epsilon(1e-15));
    CHECK(o.value(Balance{.weight = 0.01, .per_pick = true}) == doctest::Approx(0.01 / double(k)).epsilon(1e-15));
    CHECK(o.value(Balance::reference()) == doctest::Approx(0.01 / double(k)).epsilon(1e-15));
  }
}

TEST_CASE("Balance: one used expert costs E times perfect balance") {
  Cpu::Context ctx(1);
  auto q = constant_tensor<double>(ctx, 0, 6, 4);
  for (Index n = 0; n < 6; ++n) q(n, 2) = 1;
  Outcome o(std::move(q), std::vector<Index>(6, 2));
  CHECK(o.value(Balance{.weight = 1}) == doctest::Approx(4).epsilon(1e-15));
}

TEST_CASE("Balance (1): sums P in double for a million items") {
  Cpu::Context ctx(1);
  const Index items = Index(1) << 20;
  auto q = constant_tensor<float>(ctx, 0.1, items, 2);
  for (Index n = 0; n < items; ++n) q(n, 1) = 0.9f;
  SparsePlan<float, Cpu> plan;
  plan.resize(items, 2, items);
  for (Index n = 0; n < items; ++n) plan.item(n) = n, plan.expert(n) = n % 4 == 0, plan.weight(n) = 1;
  Tensor<float, 1, Cpu> value(1);
  Balance{.weight = 1}.forward<float, Cpu>(ctx, GateOutcome<float, Cpu>{q, q, plan, {}}, value);
  CHECK(value(0) == rounded<float>(2 * (0.75 * 0.1 + 0.25 * 0.9)));
}
