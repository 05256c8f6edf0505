#include "gatefold/expert/gated_mlp.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

double same(double v) { return v; }
// The two activations of gpt-oss, as in GptOssExperts._apply_gate of transformers.
double gpt_oss_gate(double v) {
  const double gate = std::min(v, 7.0);
  return gate / (1 + std::exp(-1.702 * gate));
}
double gpt_oss_up(double v) { return std::clamp(v, -7.0, 7.0) + 1; }
using GptOss = GatedMlp<ClampedSilu, ClampedPlusOne>;

/// Equation (1) in loops.
template <class P>
std::vector<double> gated(const P& p, Index e, const std::vector<double>& x, double (*act)(double),
                          double (*up)(double) = same) {
  const bool bias = p.gate_bias.size() > 0;
  std::vector<double> z(std::size_t(p.down.extent(2)), 0);
  if (bias)
    for (std::size_t o = 0; o < z.size(); ++o) z[o] = p.down_bias(e, Index(o));
  for (Index j = 0; j < p.gate.extent(2); ++j) {
    double g = bias ? p.gate_bias(e, j) : 0, u = bias ? p.up_bias(e, j) : 0;
    for (Index d = 0; d < p.gate.extent(1); ++d) {
      g += x[std::size_t(d)] * p.gate(e, d, j);
      u += x[std::size_t(d)] * p.up(e, d, j);
    }
    for (std::size_t o = 0; o < z.size(); ++o) z[o] += act(g) * up(u) * p.down(e, j, Index(o));
  }
  return z;
}

}  // namespace

TEST_CASE("GatedMlp (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool bias : {false, true})
    for (const auto& counts : uneven_counts()) {
      Bank<double, GatedMlp<Silu>> b(ctx, {.model_dim = 5, .hidden_dim = 7, .bias = bias}, counts, 6);
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

TEST_CASE("GatedMlp: gpt-oss clamps gate and up to 7") {
  Cpu::Context ctx(1);
  const Initial wide = Initial::normal(6);
  Bank<double, GptOss> b(ctx, {.model_dim = 5, .hidden_dim = 40, .initial = wide, .bias = true}, {6, 0, 5}, 11);
  b.forward();
  int above = 0, below = 0, inside = 0;
  for (const double v : b.of_slots(b.saved.up)) ++(v > 7 ? above : v < -7 ? below : inside);
  REQUIRE((above > 20 && below > 20 && inside > 20));
  CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
          return gated(b.params, e, x, gpt_oss_gate, gpt_oss_up);
        })) <= 1e-13);  // sums of 40 terms of both signs, so the result can be much smaller than the terms
}

TEST_CASE_TEMPLATE("GatedMlp: unused slots stay untouched; gradients are added", T, float, double) {
  for (const bool bias : {false, true}) {
    const auto broken =
        broken_promises<T>(GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 7, .bias = bias}, [](auto& bank) {
          for (auto* t : {&bank.saved.gate, &bank.saved.up}) bank.poison(*t);
        });
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE_TEMPLATE("GatedMlp: gradients with every activation equal finite differences", Act, Identity, Relu, Relu2,
                   Gelu, GeluTanh, Silu, Cubic, ClampedSilu, ClampedPlusOne, Tanh) {
  Cpu::Context ctx(1);
  for (const bool bias : {false, true}) {
    const auto report = check::gradients(ctx, GatedMlp<Act>{.model_dim = 4, .hidden_dim = 6, .bias = bias},
                                         {.step = 1e-5, .of_largest = 1e-8});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE_TEMPLATE("GatedMlp: gradients with a second activation equal finite differences", Up, Relu, Silu, Tanh) {
  Cpu::Context ctx(1);
  const auto report =
      check::gradients(ctx, GatedMlp<Gelu, Up>{.model_dim = 4, .hidden_dim = 6}, {.step = 1e-5, .of_largest = 1e-8});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("GatedMlp: clamped gpt-oss gradients equal finite differences") {
  Cpu::Context ctx(1);
  const GptOss mlp{.model_dim = 4, .hidden_dim = 12, .initial = Initial::normal(6), .bias = true};
  const auto report = check::gradients(ctx, mlp, {.step = 1e-6, .of_largest = 1e-7});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("GatedMlp: biases of 0 change no bit") {
  Cpu::Context ctx(1);
  const std::vector<Index> counts{3, 0, 4};
  Bank<float, GatedMlp<Silu>> plain(ctx, {.model_dim = 5, .hidden_dim = 7}, counts, 6);
  Bank<float, GatedMlp<Silu>> biased(ctx, {.model_dim = 5, .hidden_dim = 7, .bias = true}, counts, 6);
  for (auto* t : {&biased.params.gate_bias, &biased.params.up_bias, &biased.params.down_bias}) fill(ctx, t->view(), 0);
  for (auto* bank : {&plain, &biased}) {
    bank->forward();
    bank->backward();
  }
  CHECK(same_bits(plain.of_slots(plain.z), biased.of_slots(biased.z)));
  CHECK(same_bits(plain.of_slots(plain.dslots), biased.of_slots(biased.dslots)));
  CHECK(same_bits(values(plain.grads.gate, plain.grads.up, plain.grads.down),
                  values(biased.grads.gate, biased.grads.up, biased.grads.down)));
}

TEST_CASE("GatedMlp: conformance of a layer and of a mixture") {
  const auto alone =
      check::conformance<Cpu, double>(GatedMlp<Silu>{.model_dim = 5, .hidden_dim = 9}, {.items_are_independent = true});
  CHECK_MESSAGE(alone, alone.str());
  const auto biased = check::conformance<Cpu, double>(GptOss{.model_dim = 5, .hidden_dim = 9, .bias = true},
                                                      {.items_are_independent = true});
  CHECK_MESSAGE(biased, biased.str());
  const auto mixed =
      check::conformance<Cpu, double>(Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                              GatedMlp<Gelu>{.model_dim = 5, .hidden_dim = 9}},
                                      {.items_are_independent = true});
  CHECK_MESSAGE(mixed, mixed.str());
  const auto gpt_oss = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
              GptOss{.model_dim = 5, .hidden_dim = 9, .initial = Initial::normal(4), .bias = true}},
      {.items_are_independent = true});
  CHECK_MESSAGE(gpt_oss, gpt_oss.str());
}

TEST_CASE("GatedMlp: has the initial values of the reference code") {
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

TEST_CASE("GatedMlp: biases start as U(±1/√fan_in)") {
  Cpu::Context ctx(1);
  const auto p = GatedMlp<Silu>{.model_dim = 16, .hidden_dim = 64, .bias = true}.init<double, Cpu>(ctx, 20, Seed{4});
  const auto largest = [](const auto& t) {
    double most = 0;
    for (const double v : values(t)) most = support::larger(most, std::abs(v));
    return most;
  };
  for (const auto* t : {&p.gate_bias, &p.up_bias}) {
    CHECK(largest(*t) <= 0.25);
    CHECK(largest(*t) > 0.24);
  }
  CHECK(values(p.gate_bias) != values(p.up_bias));
  CHECK(largest(p.down_bias) <= 0.125);
  CHECK(largest(p.down_bias) > 0.12);
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
  CHECK(message([](auto& p) { p.gate_bias.resize(3, 6); }) ==
        "GatedMlp: params.gate_bias: expected [3, 0], got [3, 6]");
  CHECK(message([](auto& p) { p.up_bias.resize(2, 0); }) == "GatedMlp: params.up_bias: expected [3, 0], got [2, 0]");
  CHECK(message([](auto& p) { p.down_bias.resize(3, 4); }) ==
        "GatedMlp: params.down_bias: expected [3, 0], got [3, 4]");
  const M biased{.model_dim = 4, .hidden_dim = 6, .bias = true};
  CHECK(message_of([&] { biased.validate(mlp.init<float, Cpu>(ctx, 3, {}), 3); }) ==
        "GatedMlp: params.gate_bias: expected [3, 6], got [3, 0]");
}
