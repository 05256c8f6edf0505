#include "gatefold/expert/sigmoid_gated.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "support/experts.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("SigmoidGated (1): multiplies outputs by each expert's sigmoid gate") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, SigmoidGated<Linear>> b(ctx, {.expert = {.model_dim = 6, .output_dim = 3}}, counts, 6);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
            double score = 0;
            for (Index d = 0; d < 6; ++d) score += x[std::size_t(d)] * b.params.gate(e, d, 0);
            std::vector<double> z;
            for (Index o = 0; o < 3; ++o) {
              double sum = b.params.expert.bias(e, o);
              for (Index d = 0; d < 6; ++d) sum += x[std::size_t(d)] * b.params.expert.weight(e, d, o);
              z.push_back(sum / (1 + std::exp(-score)));
            }
            return z;
          })) <= 1e-14);
  }
}

TEST_CASE("SigmoidGated: gradients and conformance, also as a shared expert") {
  const SigmoidGated gated{GatedMlp<Silu>{.model_dim = 4, .hidden_dim = 5}};
  const auto alone = check::conformance<Cpu, double>(gated, {.items_are_independent = true});
  CHECK_MESSAGE(alone, alone.str());
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = 4, .hidden_dim = 3}};
  const auto shared = check::conformance<Cpu, double>(WithShared{mixture, gated}, {.items_are_independent = true});
  CHECK_MESSAGE(shared, shared.str());
}

TEST_CASE("SigmoidGated: unused slots stay untouched; slots may start anywhere") {
  const SigmoidGated<Linear> gated{.expert = {.model_dim = 5, .output_dim = 3}};
  const auto broken = broken_promises<double>(gated, [](auto& bank) {
    for (Index i = bank.used(); i < bank.saved.share.size(); ++i) {
      bank.saved.share(i) = quiet_nan;
      for (Index d = 0; d < 3; ++d) bank.saved.ungated(i, d) = quiet_nan;
    }
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  const auto later = broken_for_later_slots<double>(gated);
  CHECK_MESSAGE(later.empty(), (later.empty() ? "" : later[0]));
}

TEST_CASE("SigmoidGated: wrong shapes throw") {
  Cpu::Context ctx(1);
  const auto p = SigmoidGated<Linear>{.expert = {.model_dim = 2}}.init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { SigmoidGated<Linear>{.expert = {.model_dim = 2}}.validate(p, 4); }) ==
        "Linear: params.weight: expected [4, 2, 2], got [3, 2, 2]");
  auto other = SigmoidGated<Linear>{.expert = {.model_dim = 2}}.init<double, Cpu>(ctx, 3, {});
  other.gate.resize(3, 1, 1);
  CHECK(message_of([&] { SigmoidGated<Linear>{.expert = {.model_dim = 2}}.validate(other, 3); }) ==
        "SigmoidGated: params.gate: expected [3, 2, 1], got [3, 1, 1]");
}
