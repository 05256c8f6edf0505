#include "gatefold/expert/gated_mlp.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/experts.hpp"
#include "support/larger.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// (1) in loops.
template <class P>
std::vector<double> gated(const P& p, Index e, const std::vector<double>& x, double (*act)(double)) {
  std::vector<double> z(std::size_t(p.down.extent(2)), 0);
  for (Index j = 0; j < p.gate.extent(2); ++j) {
    double g = 0, u = 0;
    for (Index d = 0; d < p.gate.extent(1); ++d) {
      g += x[std::size_t(d)] * p.gate(e, d, j);
      u += x[std::size_t(d)] * p.up(e, d, j);
    }
    for (std::size_t o = 0; o < z.size(); ++o) z[o] += act(g) * u * p.down(e, j, Index(o));
  }
  return z;
}

}  // namespace

TEST_CASE("GatedMlp (1): equals loops for empty, full and many experts") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts()) {
    Bank<double, GatedMlp<Silu>> b(ctx, {.model_dim = 5, .hidden_dim = 7}, counts, 6);
    b.forward();
    CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
            return gated(b.params, e, x, naive::silu);
          })) <= 1e-14);
  }
  Bank<double, GatedMlp<Tanh>> own(ctx, {.model_dim = 5, .hidden_dim = 7}, {2, 0, 4}, 6);
  own.forward();
  CHECK(difference(own.of_slots(own.z), own.expected([&](Index e, const std::vector<double>& x) {
          return gated(own.params, e, x, [](double v) { return std::tanh(v); });
        })) <= 1e-14);
}

TEST_CASE_TEMPLATE("GatedMlp: unused slots stay untouched; gradients are added", T, float, double) {
  const auto broken = broken_promises<T>(GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 7}, [](auto& bank) {
    for (auto* t : {&bank.saved.gate, &bank.saved.up}) bank.poison(*t);
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE_TEMPLATE("GatedMlp: gradients with every activation", Act, Identity, Relu, Gelu, GeluTanh, Silu, Cubic,
                   Tanh) {
  Cpu::Context ctx(1);
  const auto report =
      check::gradients(ctx, GatedMlp<Act>{.model_dim = 4, .hidden_dim = 6}, {.step = 1e-5, .of_largest = 1e-8});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("GatedMlp: conformance of a layer and of a mixture") {
  const auto alone =
      check::conformance<Cpu>(GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 9}, {.items_are_independent = true});
  CHECK_MESSAGE(alone, alone.str());
  const auto mixed = check::conformance<Cpu>(Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                                     GatedMlp<Gelu>{.model_dim = 5, .hidden_dim = 9}},
                                             {.items_are_independent = true});
  CHECK_MESSAGE(mixed, mixed.str());
}

TEST_CASE("GatedMlp: initial values of the reference code") {
  Cpu::Context ctx(1);
  const GatedMlp<Silu> mlp{.model_dim = 16, .hidden_dim = 64, .initial = Initial::reference()};
  const auto p = mlp.init<double, Cpu>(ctx, 20, Seed{4});
  for (const auto* t : {&p.gate, &p.up, &p.down}) {
    double most = 0;
    for (const double v : values(*t)) most = support::larger(most, std::abs(v));
    CHECK(most <= 1.0 / 32);
    CHECK(most > 0.999 / 32);
  }
}

TEST_CASE("GatedMlp: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  using M = GatedMlp<Silu>;
  CHECK(message_of([&] { (void)M{.hidden_dim = 2}.init<float, Cpu>(ctx, 1, {}); }) ==
        "GatedMlp.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)M{.model_dim = 2}.init<float, Cpu>(ctx, 1, {}); }) ==
        "GatedMlp.init: hidden_dim: expected at least 1, got 0");
  const M mlp{.model_dim = 4, .hidden_dim = 6};
  const auto message = [&](auto&& change) {
    auto p = mlp.init<float, Cpu>(ctx, 3, {});
    change(p);
    return message_of([&] { mlp.validate(p, 3); });
  };
  CHECK(message([](auto&) {}) == "no ArgumentError");
  CHECK(message([](auto& p) { p.gate.resize(3, 6, 4); }) == "GatedMlp: params.gate: expected [3, 4, 6], got [3, 6, 4]");
  CHECK(message([](auto& p) { p.up.resize(2, 4, 6); }) == "GatedMlp: params.up: expected [3, 4, 6], got [2, 4, 6]");
  CHECK(message([](auto& p) { p.down.resize(3, 6, 5); }) == "GatedMlp: params.down: expected [3, 6, 4], got [3, 6, 5]");
}
