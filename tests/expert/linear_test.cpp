#include "gatefold/expert/linear.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/experts.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("Linear (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool bias : {true, false})
    for (const Index output : {0, 3})
      for (const auto& counts : uneven_counts()) {
        Bank<double, Linear> b(ctx, Linear{.model_dim = 5, .output_dim = output, .bias = bias}, counts, 6);
        b.forward();
        CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
                std::vector<double> z;
                for (Index o = 0; o < (output ? output : 5); ++o) {
                  double sum = bias ? b.params.bias(e, o) : 0;
                  for (Index d = 0; d < 5; ++d) sum += x[std::size_t(d)] * b.params.weight(e, d, o);
                  z.push_back(sum);
                }
                return z;
              })) <= 1e-14);
      }
}

TEST_CASE_TEMPLATE("Linear: unused slots stay untouched; gradients are added", T, float, double) {
  for (const bool bias : {true, false}) {
    const auto broken = broken_promises<T>(Linear{.model_dim = 5, .output_dim = 4, .bias = bias}, [](auto&) {});
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("Linear: gradients and conformance of a layer and a mixture") {
  for (const bool bias : {true, false}) {
    const auto alone = check::conformance<Cpu, double>(Linear{.model_dim = 5, .output_dim = 3, .bias = bias},
                                                       {.items_are_independent = true});
    CHECK_MESSAGE(alone, alone.str());
    const auto mixed = check::conformance<Cpu, double>(
        Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 5, .bias = bias}},
        {.items_are_independent = true});
    CHECK_MESSAGE(mixed, mixed.str());
  }
}

TEST_CASE("Linear: starts as U(±1/√D), with the shapes of its options") {
  Cpu::Context ctx(1);
  const auto p = Linear{.model_dim = 16, .output_dim = 40}.init<double, Cpu>(ctx, 30, Seed{4});
  CHECK(p.weight.extent(0) == 30);
  CHECK(p.weight.extent(1) == 16);
  CHECK(p.weight.extent(2) == 40);
  double largest = 0;
  for (const double v : values(p)) largest = support::larger(largest, std::abs(v));
  CHECK(largest <= 0.25);
  CHECK(largest > 0.249);
  CHECK(Linear{.model_dim = 16, .bias = false}.init<double, Cpu>(ctx, 3, Seed{4}).bias.size() == 0);
  CHECK(Linear{.model_dim = 16}.out_dim() == 16);
  CHECK(Linear{.model_dim = 16, .output_dim = 1}.out_dim() == 1);
}

TEST_CASE("Linear: initial values can be changed") {
  Cpu::Context ctx(1);
  const Linear linear{.model_dim = 16, .output_dim = 4, .initial = {.law = Initial::Law::reference, .shared = true}};
  const auto p = linear.init<double, Cpu>(ctx, 3, Seed{4});
  const auto w = values(p.weight);
  for (std::size_t i = 0; i < w.size(); ++i) {
    CHECK(std::abs(w[i]) <= 0.125);
    CHECK(w[i] == w[i % 64]);
  }
  CHECK(values(p.bias) == std::vector<double>(12, 0.0));
}

TEST_CASE("Linear: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)Linear{}.init<float, Cpu>(ctx, 1, {}); }) ==
        "Linear.init: model_dim: expected at least 1, got 0");
  const Linear linear{.model_dim = 4, .output_dim = 2};
  auto p = linear.init<float, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { linear.validate(p, 5); }) == "Linear: params.weight: expected [5, 4, 2], got [3, 4, 2]");
  p.bias.resize(3, 0);
  CHECK(message_of([&] { linear.validate(p, 3); }) == "Linear: params.bias: expected [3, 2], got [3, 0]");
}
