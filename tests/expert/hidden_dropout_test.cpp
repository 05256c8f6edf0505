#include "gatefold/expert/hidden_dropout.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/dropout.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4, hidden = 5, experts = 3;
const Noise noise{Random{Seed{9}, 4}};
const Mlp<Relu> mlp{.model_dim = dim, .hidden_dim = hidden};
const GatedMlp<Silu> gated{.model_dim = dim, .hidden_dim = hidden};
const SoftmaxTopK gate{.scores = {.experts = experts}, .selection = {.k = 2}};

/// Returns ξ / (1 − rate) of the hidden value with this number.
double factor(double rate, Index number) {
  return uniform<double>(Seed{9}, 4, std::uint64_t(number)) < rate ? 0 : 1 / (1 - rate);
}

/// Groups of a few items, some at several experts, and a slot past the last used one.
struct Bank {
  Cpu::Context ctx{2};
  std::vector<Index> offsets{0, 3, 3, 8}, rows{4, 0, 2, 1, 4, 3, 0, 6, -1};
  Groups<Cpu> groups{offsets, rows, 9};
  Tensor<double, 2, Cpu> x = uniform_tensor<double>(ctx, Seed{2}, 1, 7, dim), z{9, dim};
};

}  // namespace

TEST_CASE("HiddenDropout (1): drops and rescales values of an Mlp") {
  Bank b;
  for (const double rate : {0.2, 0.7}) {
    const auto dropped = HiddenDropout{rate, mlp}.with_noise(noise);
    const auto p = dropped.init<double, Cpu>(b.ctx, experts, Seed{1});
    Saved<Mlp<Relu>, double, Cpu> saved;
    dropped.forward(b.ctx, p, b.groups, b.x, b.z, saved);
    for (Index s = 0; s < 8; ++s) {
      const Index e = s < 3 ? 0 : 2, n = b.rows[std::size_t(s)];
      std::vector<double> h;
      for (Index j = 0; j < hidden; ++j) {
        double v = p.expert.up_bias(e, j);
        for (Index d = 0; d < dim; ++d) v += b.x(n, d) * p.expert.up(e, d, j);
        h.push_back(v > 0 ? v * factor(rate, (n * experts + e) * hidden + j) : 0);
      }
      for (Index d = 0; d < dim; ++d) {
        double v = p.expert.down_bias(e, d);
        for (Index j = 0; j < hidden; ++j) v += h[std::size_t(j)] * p.expert.down(e, j, d);
        CHECK(std::abs(b.z(s, d) - v) <= 1e-14);
      }
    }
    Tensor<double, 2, Cpu> inferred(9, dim);
    infer_expert(dropped, b.ctx, p, b.groups, b.x, inferred);
    for (Index i = 0; i < 8 * dim; ++i) CHECK(inferred.data()[i] == b.z.data()[i]);
  }
}

TEST_CASE("HiddenDropout (1): drops and rescales values of a GatedMlp") {
  Bank b;
  const double rate = 0.4;
  const auto dropped = HiddenDropout{rate, gated}.with_noise(noise);
  const auto p = dropped.init<double, Cpu>(b.ctx, experts, Seed{1});
  Saved<GatedMlp<Silu>, double, Cpu> saved;
  dropped.forward(b.ctx, p, b.groups, b.x, b.z, saved);
  for (Index s = 0; s < 8; ++s) {
    const Index e = s < 3 ? 0 : 2, n = b.rows[std::size_t(s)];
    std::vector<double> v(dim, 0.0);
    for (Index j = 0; j < hidden; ++j) {
      double g = 0, u = 0;
      for (Index d = 0; d < dim; ++d) g += b.x(n, d) * p.expert.gate(e, d, j), u += b.x(n, d) * p.expert.up(e, d, j);
      const double h = g / (1 + std::exp(-g)) * u * factor(rate, (n * experts + e) * hidden + j);
      for (Index d = 0; d < dim; ++d) v[std::size_t(d)] += h * p.expert.down(e, j, d);
    }
    for (Index d = 0; d < dim; ++d) CHECK(std::abs(b.z(s, d) - v[std::size_t(d)]) <= 1e-14);
  }
}

TEST_CASE("HiddenDropout: dropped values do not depend on the batch") {
  Bank b;
  const auto dropped = HiddenDropout{0.5, mlp}.with_noise(noise);
  const auto p = dropped.init<double, Cpu>(b.ctx, experts, Seed{1});
  Saved<Mlp<Relu>, double, Cpu> saved;
  dropped.forward(b.ctx, p, b.groups, b.x, b.z, saved);
  // Only items 0 and 4 at expert 2, in another order.
  const std::vector<Index> offsets{0, 0, 0, 2}, rows{0, 4};
  Tensor<double, 2, Cpu> alone(2, dim);
  dropped.forward(b.ctx, p, Groups<Cpu>{offsets, rows, 2}, b.x, alone, saved);
  for (Index d = 0; d < dim; ++d) {
    CHECK(alone(0, d) == b.z(6, d));
    CHECK(alone(1, d) == b.z(4, d));
  }
}

TEST_CASE("HiddenDropout: without noise, or at rate 0, it changes nothing") {
  Cpu::Context ctx(1);
  const auto check = [&](const auto& expert) {
    auto plain = pass<float>(ctx, Residual{update::HeavyBall{}, Mixture{gate, expert}}, 9);
    plain.forward();
    plain.backward();
    for (const double rate : {0.0, 0.5}) {
      auto p = pass<float>(ctx, Residual{update::HeavyBall{}, Mixture{gate, HiddenDropout{rate, expert}}}, 9);
      if (rate == 0) p.extra.noise = noise;
      CHECK(same_bits(values(p.params), values(plain.params)));
      p.forward();
      p.backward();
      CHECK(same_bits(p.outcome(), plain.outcome()));
    }
    std::vector<std::string> names, expected;
    for_each_tensor([&](const Name& name, const auto&) { expected.push_back(name.str()); }, plain.params);
    auto p = pass<float>(ctx, Residual{update::HeavyBall{}, Mixture{gate, HiddenDropout{0.5, expert}}}, 9);
    for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
    CHECK(names == expected);
    p.extra.noise = noise;
    p.forward();
    CHECK_FALSE(same_bits(values(p.y), values(plain.y)));
  };
  check(mlp);
  check(gated);
}

TEST_CASE("HiddenDropout: gradients with noise equal finite differences") {
  Cpu::Context ctx(1);
  const auto check = [&](const auto& model, const auto& extra) {
    const auto report = check::gradients(ctx, model, {.items = 7}, extra);
    CHECK_MESSAGE(report, report.str());
  };
  const auto each = [&](const auto& expert) {
    const HiddenDropout dropped{0.4, expert};
    const Mixture mixture{gate, dropped};
    Extra<decltype(mixture), double, Cpu> of_mixture;
    of_mixture.noise = noise;
    check(Residual{update::HeavyBall{}, mixture}, of_mixture);
    check(Stack{Residual{update::HeavyBall{}, mixture}, 2}, of_mixture);
    const Mixture soft{SoftMoe{.model_dim = dim, .count = experts, .slots = 2}, dropped};
    Extra<decltype(soft), double, Cpu> of_soft;
    of_soft.noise = noise;
    check(NoResidual{soft}, of_soft);
    check(NoResidual{OneExpert{dropped}}, noise);
    const Dropout outside{0.3, mixture};
    Extra<decltype(outside), double, Cpu> of_both{{Random{Seed{3}, 1}}, of_mixture};
    check(Residual{update::HeavyBall{}, outside}, of_both);
  };
  each(Mlp<Gelu>{.model_dim = dim, .hidden_dim = hidden});
  each(gated);
  auto p = pass<double>(ctx, Stack{NoResidual{OneExpert{HiddenDropout{0.5, mlp}}}, 2}, 7);
  for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), 1); }, p.params);
  fill(ctx, p.x.view(), 1);
  p.extra = noise;
  p.forward();
  // All hidden values of layer 0 are equal, so its output, and therefore `pre` of layer 1, shows how many of them were
  // kept. The random numbers noise.at(0) decide this.
  const Noise first = noise.at(0);
  for (Index n = 0; n < 7; ++n) {
    Index kept = 0;
    for (Index j = 0; j < hidden; ++j)
      kept += uniform<double>(first.random->seed, first.random->step, std::uint64_t(n * hidden + j)) >= 0.5 ? 1 : 0;
    CHECK(p.saved.layers[1].branch.pre(n, 0) == double(dim * (1 + 2 * (dim + 1) * kept) + 1));
  }
}

TEST_CASE("HiddenDropout: conformance with noise; threads change no bit") {
  const Mixture mixture{gate, HiddenDropout{0.4, Mlp<Gelu>{.model_dim = dim, .hidden_dim = hidden}}};
  const auto report = check::conformance<Cpu, double>(Residual{update::HeavyBall{}, mixture}, {},
                                                      [&]<class T>(Element<T>, Index, Index) {
                                                        Extra<std::remove_const_t<decltype(mixture)>, T, Cpu> extra;
                                                        extra.noise = noise;
                                                        return extra;
                                                      });
  CHECK_MESSAGE(report, report.str());
  std::vector<double> first;
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads);
    auto p = pass<float>(ctx, Residual{update::HeavyBall{}, Mixture{gate, HiddenDropout{0.4, gated}}}, 600);
    p.extra.noise = noise;
    p.forward();
    p.backward();
    if (first.empty()) first = p.outcome();
    CHECK(same_bits(p.outcome(), first));
  }
}

TEST_CASE("HiddenDropout: a rate outside its range throws") {
  Cpu::Context ctx(1);
  for (const double rate : {-0.1, 1.0})
    CHECK(message_of([&] {
            (void)HiddenDropout{rate, mlp}.init<float, Cpu>(ctx, experts, {});
          }).starts_with("HiddenDropout: rate: expected 0 <= rate < 1, got "));
}
