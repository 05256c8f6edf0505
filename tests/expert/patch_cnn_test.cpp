#include "gatefold/expert/patch_cnn.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/experts.hpp"
#include "support/larger.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"
#include "support/patches.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

double gelu(double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2.0))); }

template <class Act = Cubic>
PatchCnn<Act> wide(Index outputs, bool bias) {
  return {.model_dim = 3, .patches = 4, .filters = 6, .outputs = outputs, .bias = bias, .initial = {.scale = 1}};
}

}  // namespace

TEST_CASE("PatchCnn (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool bias : {true, false})
    for (const Index outputs : {1, 3})
      for (const auto& counts : uneven_counts()) {
        Bank<double, PatchCnn<Gelu>> b(ctx, wide<Gelu>(outputs, bias), counts, 6);
        b.forward();
        CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
                return naive::patches(
                    x, 4, 3, 6, outputs, [&](Index, Index d, Index j) { return b.params.weight(e, d, j); },
                    [&](Index, Index j) { return bias ? b.params.bias(e, j) : 0; }, gelu);
              })) <= 1e-14);
      }
}

TEST_CASE("PatchCnn: unused slots stay untouched; gradients are added") {
  for (const bool bias : {true, false}) {
    const auto broken = broken_promises<double>(wide(2, bias), [](auto& bank) {
      for (Index i = bank.used() * 4 * 6; i < bank.saved.pre.size(); ++i) bank.saved.pre.data()[i] = quiet_nan;
    });
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("PatchCnn: slots may start anywhere") {
  const auto broken = broken_for_later_slots<double>(wide(2, true));
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("PatchCnn: gradients of layer and mixture equal finite differences") {
  Cpu::Context ctx(1);
  const auto alone = check::gradients(ctx, wide(2, true));
  CHECK_MESSAGE(alone, alone.str());
  const auto mixed = check::gradients(ctx, Mixture{SoftmaxTopK{.scores = {.experts = 3, .length = 4, .bias = false},
                                                               .mixing = {},
                                                               .selection = {.k = 3, .renormalise = false}},
                                                   wide(1, false)});
  CHECK_MESSAGE(mixed, mixed.str());
}

TEST_CASE("PatchCnn: the reference starts as U(±1/√50) / 1000") {
  Cpu::Context ctx(1);
  const auto expert = PatchCnn<>::reference();
  CHECK(expert.in_dim() == 200);
  CHECK(expert.out_dim() == 2);
  const auto wider = PatchCnn<>::reference({.model_dim = 10, .patches = 2, .filters = 4});
  CHECK(wider.in_dim() == 20);
  CHECK(wider.out_dim() == 1);
  CHECK(wider.bias);
  const auto p = expert.init<double, Cpu>(ctx, 8, Seed{1});
  double most = 0, square = 0;
  for (const double v : values(p.weight)) {
    most = support::larger(most, std::abs(v));
    square += v * v / (8 * 50 * 16);
  }
  CHECK(most <= 1e-3 / std::sqrt(50.0));
  const double deviation = std::sqrt(0.2 / 6400);
  CHECK(std::sqrt(square) == doctest::Approx(1e-3 / std::sqrt(150.0)).epsilon(5 * deviation).scale(0));
  CHECK(p.bias.extent(1) == 16);
}

TEST_CASE("PatchCnn: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const PatchCnn<> uneven{.model_dim = 2, .filters = 8, .outputs = 3};
  CHECK(message_of([&] { (void)uneven.init<double, Cpu>(ctx, 1, {}); }) ==
        "PatchCnn.init: outputs: expected a divisor of filters = 8, got 3");
  const PatchCnn<> m{.model_dim = 2, .patches = 3, .filters = 4, .bias = true};
  auto p = m.init<double, Cpu>(ctx, 5, {});
  CHECK(message_of([&] { m.validate(p, 6); }) == "PatchCnn: params.weight: expected [6, 2, 4], got [5, 2, 4]");
  p.bias.resize(5, 0);
  CHECK(message_of([&] { m.validate(p, 5); }) == "PatchCnn: params.bias: expected [5, 4], got [5, 0]");
}
