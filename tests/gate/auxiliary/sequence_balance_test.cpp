#include "gatefold/gate/auxiliary/sequence_balance.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/gate_outcome.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Equations (1) to (3) in loops.
double in_loops(const Outcome& o, const SequenceBalance& of) {
  const Index items = o.q.extent(0), experts = o.q.extent(1), length = of.length > 0 ? of.length : items;
  double sum = 0, sequences = 0;
  for (Index first = 0; first < items; first += length) {
    const Index end = std::min(first + length, items);
    double real = 0, loss = 0;
    for (Index n = first; n < end; ++n) real += o.is_valid(n);
    if (real == 0) continue;
    for (Index e = 0; e < experts; ++e) {
      double mine = 0, picks = 0, share = 0;
      for (Index p = 0; p < o.plan.expert.size(); ++p) {
        const Index n = o.plan.item(p);
        if (n < first || n >= end || !o.is_valid(n)) continue;
        picks += 1;
        mine += o.plan.expert(p) == e ? 1 : 0;
      }
      for (Index n = first; n < end; ++n) {
        if (!o.is_valid(n)) continue;
        double total = 0;
        for (Index f = 0; f < experts; ++f) total += 1 / (1 + std::exp(-o.logits(n, f)));
        share += of.sigmoid ? 1 / (1 + std::exp(-o.logits(n, e))) / total : o.q(n, e);
      }
      loss += mine / picks * share / real;
    }
    sum += of.weight * double(experts) * loss;
    ++sequences;
  }
  return sum / sequences;
}
const std::vector<std::vector<double>> masks{{}, {1, 0, 1, 1, 0, 1}, {1, 1, 0, 0, 1, 1}, {0, 0, 1, 1, 1, 0}};

}  // namespace

TEST_CASE("SequenceBalance (1), (2), (3): averages Balance over sequences") {
  for (const bool sigmoid : {false, true})
    for (const Index length : {0, 1, 2, 3, 4, 6, 9})
      for (const auto& mask : masks) {
        CAPTURE(sigmoid);
        CAPTURE(length);
        auto o = random_outcome(mask);
        const SequenceBalance loss{.weight = 0.3, .length = length, .sigmoid = sigmoid};
        CHECK(o.value(loss) == doctest::Approx(in_loops(o, loss)).epsilon(1e-14));
      }
}

TEST_CASE("SequenceBalance: one sequence gives the loss of Balance") {
  for (const auto& mask : masks) {
    auto o = random_outcome(mask);
    CHECK(o.value(SequenceBalance{.weight = 0.3}) == doctest::Approx(o.value(Balance{.weight = 0.3})).epsilon(1e-15));
    const auto [dz, dq] = o.gradients(SequenceBalance{.weight = 0.3});
    const auto [dz_balance, dq_balance] = o.gradients(Balance{.weight = 0.3});
    CHECK(values(dz) == values(dz_balance));
    CHECK(difference(values(dq), values(dq_balance)) <= 1e-15);
  }
}

TEST_CASE("SequenceBalance: gradients equal finite differences") {
  for (const bool sigmoid : {false, true})
    for (const auto& mask : masks) {
      CAPTURE(sigmoid);
      auto o = random_outcome(mask);
      const SequenceBalance loss{.weight = 0.3, .length = 4, .sigmoid = sigmoid};
      const auto [dz, dq] = o.gradients(loss);
      double largest = 0;
      for (Index i = 0; i < o.q.size(); ++i)
        for (const bool of_logits : {false, true}) {
          double& v = (of_logits ? o.logits : o.q).data()[i];
          const double at = v, h = 1e-5;
          v = at + h;
          const double above = in_loops(o, loss);
          v = at - h;
          const double below = in_loops(o, loss);
          v = at;
          const double slope = (above - below) / (2 * h);
          CHECK((of_logits ? dz : dq).data()[i] - 1 == doctest::Approx(slope).epsilon(1e-8));
          largest = std::max(largest, std::abs(slope));
        }
      CHECK(largest > 1e-3);
    }
}

TEST_CASE("SequenceBalance: even loads in all sequences give the weight") {
  Cpu::Context ctx(1);
  Outcome o(constant_tensor<double>(ctx, 0.25, 8, 4), {0, 1, 2, 3, 3, 2, 1, 0});
  CHECK(o.value(SequenceBalance{.weight = 0.01, .length = 4}) == doctest::Approx(0.01).epsilon(1e-15));
}

TEST_CASE("SequenceBalance: uneven sequences cost more than an even batch") {
  Cpu::Context ctx(1);
  auto q = constant_tensor<double>(ctx, 0, 4, 2);
  for (Index n = 0; n < 4; ++n) q(n, n / 2) = 1;  // each sequence uses one of two experts
  Outcome o(std::move(q), {0, 0, 1, 1});
  CHECK(o.value(SequenceBalance{.weight = 1}) == 1);
  CHECK(o.value(SequenceBalance{.weight = 1, .length = 2}) == 2);
}

TEST_CASE("SequenceBalance: gradients and conformance in a mixture") {
  for (const bool sigmoid : {false, true}) {
    const SequenceBalance loss{.weight = 0.3, .length = 3, .sigmoid = sigmoid};
    const auto conforms = [](const auto& gate) {
      const auto report =
          check::conformance<Cpu, double>(Mixture{gate, Linear{.model_dim = 4}}, {.gradients = {.items = 8}});
      CHECK_MESSAGE(report, report.str());
    };
    conforms(WithAuxiliary<SoftmaxTopK, SequenceBalance>{.scores = {.experts = 4}, .auxiliary = {loss}});
    conforms(WithAuxiliary<SigmoidTopK, SequenceBalance>{.scores = {.experts = 4}, .auxiliary = {loss}});
  }
}

TEST_CASE("SequenceBalance: empty batches and all-padding batches cost nothing") {
  Cpu::Context ctx(1);
  auto o = random_outcome({0, 0, 0, 0, 0, 0});
  CHECK(o.value(SequenceBalance{.weight = 1, .length = 2}) == 0);
  const auto [dz, dq] = o.gradients(SequenceBalance{.weight = 1, .length = 2});
  for (const double d : values(dz, dq)) CHECK(d == 1);
  const Mixture layer{WithAuxiliary<SoftmaxTopK, SequenceBalance>{
                          .scores = {.experts = 4}, .auxiliary = {SequenceBalance{.weight = 1, .length = 2}}},
                      Linear{.model_dim = 4}};
  auto p = pass<double>(ctx, layer, 0);
  p.forward();
  p.backward();
  CHECK(p.saved.branch.gate.auxiliary(0) == 0);
}

TEST_CASE("SequenceBalance: wrong options throw") {
  CHECK(message_of([] { SequenceBalance{.weight = quiet_nan}.validate(4); }) ==
        "SequenceBalance: weight: expected a finite number, got nan");
  CHECK(message_of([] { SequenceBalance{.length = -1}.validate(4); }) ==
        "SequenceBalance: length: expected at least 0, got -1");
}
