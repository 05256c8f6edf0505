#include "gatefold/expert/mlp.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>

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

/// Computes tanh with operations of registers only.
struct TanhOfRegisters {
  template <class V>
  static V value(V v) {
    using functor::math::exp;
    return V(2) / (V(1) + exp(v * V(-2))) - V(1);
  }
  template <class V>
  static V slope(V v) {
    return V(1) - value(v) * value(v);
  }
};

}  // namespace

TEST_CASE("Mlp (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool bias : {true, false})
    for (const auto& counts : uneven_counts()) {
      Bank<double, Mlp<Gelu>> b(ctx, {.model_dim = 5, .hidden_dim = 7, .bias = bias}, counts, 6);
      b.forward();
      CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
              return naive::mlp(b.params, e, x, naive::gelu);
            })) <= 1e-14);
    }
}

TEST_CASE_TEMPLATE("Mlp: unused slots stay untouched; gradients are added", T, float, double) {
  for (const bool bias : {true, false}) {
    const auto broken = broken_promises<T>(Mlp<Gelu>{.model_dim = 5, .hidden_dim = 7, .bias = bias},
                                           [](auto& bank) { bank.poison(bank.saved.pre); });
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE_TEMPLATE("Mlp: gradients with every activation equal finite differences", Act, Identity, Relu, Gelu, GeluTanh,
                   Silu, Cubic, Relu2, Tanh, TanhOfRegisters) {
  Cpu::Context ctx(1);
  for (const bool bias : {true, false}) {
    const auto report = check::gradients(ctx, Mlp<Act>{.model_dim = 4, .hidden_dim = 6, .bias = bias},
                                         {.step = 1e-5, .of_largest = 1e-8});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("Mlp: conformance of a layer and of a mixture") {
  for (const bool bias : {true, false}) {
    const auto alone = check::conformance<Cpu, double>(Mlp<Gelu>{.model_dim = 5, .hidden_dim = 9, .bias = bias},
                                                       {.items_are_independent = true});
    CHECK_MESSAGE(alone, alone.str());
  }
  const auto mixed = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Mlp<Silu>{.model_dim = 5, .hidden_dim = 9}},
      {.items_are_independent = true});
  CHECK_MESSAGE(mixed, mixed.str());
}

TEST_CASE_TEMPLATE("Mlp: accepts a user-defined activation on scalars or registers", Act, Tanh, TanhOfRegisters) {
  Cpu::Context ctx(1);
  Bank<double, Mlp<Act>> b(ctx, {.model_dim = 5, .hidden_dim = 7}, {2, 0, 4}, 6);
  b.forward();
  CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
          return naive::mlp(b.params, e, x, [](double v) { return std::tanh(v); });
        })) <= 1e-14);
}

TEST_CASE("Mlp: weights and biases start as U(±1/√fan_in)") {
  Cpu::Context ctx(1);
  const auto p = Mlp<Relu>{.model_dim = 16, .hidden_dim = 64}.init<double, Cpu>(ctx, 20, Seed{4});
  const auto largest = [](const auto& t) {
    double most = 0;
    for (const double v : values(t)) most = support::larger(most, std::abs(v));
    return most;
  };
  CHECK(largest(p.up) <= 0.25);
  CHECK(largest(p.up) > 0.249);
  CHECK(largest(p.up_bias) <= 0.25);
  CHECK(largest(p.up_bias) > 0.24);
  CHECK(largest(p.down) <= 0.125);
  CHECK(largest(p.down) > 0.1249);
  CHECK(largest(p.down_bias) <= 0.125);
  CHECK(largest(p.down_bias) > 0.12);
}

TEST_CASE("Mlp: has the initial values of the reference code") {
  Cpu::Context ctx(1);
  const Mlp<Relu> mlp{.model_dim = 16, .hidden_dim = 64, .initial = Initial::reference()};
  const auto p = mlp.init<double, Cpu>(ctx, 20, Seed{4});
  for (const auto* t : {&p.up, &p.down}) {
    double most = 0;
    for (const double v : values(*t)) most = support::larger(most, std::abs(v));
    CHECK(most <= 1.0 / 32);
    CHECK(most > 0.999 / 32);
  }
  for (const double v : values(p.up_bias, p.down_bias)) CHECK(v == 0);
}

TEST_CASE("Mlp: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  using M = Mlp<Relu>;
  CHECK(message_of([&] { (void)M{.hidden_dim = 2}.init<float, Cpu>(ctx, 1, {}); }) ==
        "Mlp.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)M{.model_dim = 2}.init<float, Cpu>(ctx, 1, {}); }) ==
        "Mlp.init: hidden_dim: expected at least 1, got 0");
  const M mlp{.model_dim = 4, .hidden_dim = 6};
  const auto message = [&](auto&& change) {
    auto p = mlp.init<float, Cpu>(ctx, 3, {});
    change(p);
    return message_of([&] { mlp.validate(p, 3); });
  };
  CHECK(message([](auto&) {}) == "no ArgumentError");
  CHECK(message([](auto& p) { p.up.resize(2, 4, 6); }) == "Mlp: params.up: expected [3, 4, 6], got [2, 4, 6]");
  CHECK(message([](auto& p) { p.up_bias.resize(3, 0); }) == "Mlp: params.up_bias: expected [3, 6], got [3, 0]");
  CHECK(message([](auto& p) { p.down.resize(3, 4, 6); }) == "Mlp: params.down: expected [3, 6, 4], got [3, 4, 6]");
  CHECK(message([](auto& p) { p.down_bias.resize(3, 6); }) == "Mlp: params.down_bias: expected [3, 4], got [3, 6]");
}

TEST_CASE("Mlp: saved values of another width throw before any write") {
  Cpu::Context ctx(1);
  const auto layer = [](Index hidden) {
    return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Mlp<Relu>{4, hidden}};
  };
  auto p = pass<float>(ctx, layer(6), 8), narrow = pass<float>(ctx, layer(2), 8);
  p.forward();
  narrow.forward();
  const auto before = values(p.dx, p.grads);
  std::swap(p.saved, narrow.saved);
  CHECK(message_of([&] { p.backward(); }) == "Mlp.backward: saved.pre: expected [8, 6], got [8, 2]");
  p.saved = {};
  CHECK(message_of([&] { p.backward(); }) == "NoResidual.backward: saved: x of forward: expected [8, 4], got [0, 0]");
  CHECK(same_bits(values(p.dx, p.grads), before));
}
