#include "gatefold/layer/competition.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/hidden_dropout.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4;
const Noise noise{Random{Seed{5}, 2}};
const std::vector<double> mask{1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1};

auto mixture(Index experts, Index k) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
}
struct WithNoise {
  template <class T>
  CompetitionExtra<Extra<SoftmaxTopK, T, Cpu>> operator()(Element<T>, Index, Index) const {
    return {.noise = noise};
  }
};

/// The results of (1) to (4) for all items, computed in loops.
struct Naive {
  std::vector<double> u;
  std::vector<Index> winners;
  double loss = 0;
};
Naive in_loops(const auto& p, const auto& x, Index k, Affinity affinity, const std::vector<double>& valid) {
  const Index experts = p.expert.up.extent(0), items = x.extent(0);
  Naive all;
  double count = 0;
  for (Index n = 0; n < items; ++n) {
    if (!valid.empty() && valid[std::size_t(n)] == 0) {
      all.u.insert(all.u.end(), std::size_t(dim), 0);
      continue;
    }
    ++count;
    const auto item = naive::row(x, n);
    std::vector<naive::Row> z;
    naive::Row s;
    for (Index e = 0; e < experts; ++e) {
      z.push_back(naive::mlp(p.expert, e, item, naive::gelu));
      double sum = 0;
      for (const double v : z.back()) sum += affinity == Affinity::norm ? v * v : std::log(1 + std::exp(v));
      s.push_back(affinity == Affinity::norm ? std::sqrt(sum) : sum / dim);
    }
    naive::Row of_winners, u(std::size_t(dim), 0);
    const auto best = naive::best(s, k);
    for (const Index e : best) of_winners.push_back(s[std::size_t(e)]);
    const auto w = naive::softmax(of_winners);
    for (std::size_t j = 0; j < best.size(); ++j)
      for (std::size_t d = 0; d < u.size(); ++d) u[d] += w[j] * z[std::size_t(best[j])][d];
    all.u.insert(all.u.end(), u.begin(), u.end());
    all.winners.insert(all.winners.end(), best.begin(), best.end());
    const auto q = naive::softmax(naive::logits(p.gate.scores, item)), share = naive::softmax(s);
    for (std::size_t e = 0; e < q.size(); ++e) all.loss += (q[e] - share[e]) * (q[e] - share[e]);
  }
  all.loss /= count * double(experts);
  return all;
}

/// A training run in which the experts of each layer compete in about half of the steps.
struct Run {
  using Model = decltype(Stack{Residual{update::Plain{}, Competition{mixture(4, 2), 0.5}}, 2});
  Cpu::Context ctx;
  Trainer<double, Cpu::Context, Model, MeanSquaredError, optim::AdamW> trainer;
  int competitions = 0;

  explicit Run(int threads = 1)
      : ctx(threads),
        trainer(ctx, Stack{Residual{update::Plain{}, Competition{mixture(4, 2), 0.5}}, 2}, MeanSquaredError{},
                optim::AdamW{.lr = 0.01}, Seed{3}, Element<double>{}) {}
  void step(Index i) {
    const auto x = uniform_tensor<double>(ctx, Seed{7}.fork(std::uint64_t(i)), 1.0, 24, dim);
    trainer.step(x, x, {.noise = {trainer.noise()}});
    for_each_mixture(trainer.saved, [&](const auto& of) { competitions += of.gate.auxiliary.size() == 1; });
  }
};

}  // namespace

TEST_CASE("Competition (1), (2), (3), (4): equals loops over items and experts") {
  Cpu::Context ctx(2);
  for (const Index experts : {1, 2, 7, 40})
    for (const Index k : {Index(1), Index(2), experts})
      for (const Affinity affinity : {Affinity::softplus, Affinity::norm})
        for (const bool padding : {false, true}) {
          if (k > experts) continue;
          CAPTURE(experts);
          CAPTURE(k);
          CAPTURE(padding);
          auto p = pass<double>(ctx, Competition{mixture(experts, k), 1.0, 0.3, affinity}, Index(mask.size()));
          p.extra.noise = noise;
          const auto valid = padding ? mask : std::vector<double>{};
          p.extra.branch.valid = valid;
          p.forward();
          const auto expected = in_loops(p.params.branch.mixture, p.x, k, affinity, valid);
          CHECK(difference(values(p.y), expected.u) <= 1e-13);
          const auto& of = p.saved.branch.mixture;
          std::vector<Index> winners;
          for (Index i = 0; i < of.plan.expert.size(); ++i)
            if (of.plan.expert(i) >= 0) winners.push_back(of.plan.expert(i));
          CHECK(winners == expected.winners);
          REQUIRE(of.gate.auxiliary.size() == 1);
          CHECK(of.gate.auxiliary(0) == doctest::Approx(0.3 * expected.loss).epsilon(1e-12));
          const auto y = values(p.y);
          fill(ctx, p.y, quiet_nan);
          p.infer();
          CHECK(same_bits(values(p.y), y));
        }
}

TEST_CASE("Competition: gradients of the total loss equal finite differences") {
  for (const Affinity affinity : {Affinity::softplus, Affinity::norm})
    for (const Index k : {1, 2, 3}) {
      CAPTURE(k);
      const auto report = check::conformance<Cpu, double>(
          Stack{Residual{update::Plain{}, Competition{mixture(3, k), 1.0, 0.7, affinity, false}}, 2},
          {.gradients = {.items = 10}}, WithNoise{});
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("Competition (4): a detached loss trains only the router") {
  Cpu::Context ctx(1);
  for (const double weight : {0.0, 5.0}) {
    CAPTURE(weight);
    const auto grads_of = [&](double of_loss, bool detached) {
      auto p = pass<double>(ctx, Competition{mixture(3, 2), 1.0, of_loss, Affinity::softplus, detached}, 10);
      p.extra.noise = noise;
      p.forward();
      p.backward();
      return std::pair{values(p.grads.branch.mixture.expert), values(p.grads.branch.mixture.gate)};
    };
    const auto without = grads_of(0, true), detached = grads_of(weight, true), attached = grads_of(weight, false);
    CHECK(same_bits(detached.first, without.first));
    CHECK(same_bits(detached.second, attached.second));
    CHECK(same_bits(attached.first, without.first) == (weight == 0));
    // The router has no other loss in a step that competes.
    CHECK(std::all_of(detached.second.begin(), detached.second.end(), [](double g) { return g == 0; }) ==
          (weight == 0));
  }
  // p[n,e] in (4) does not depend on the router, so the gradient of the router's bias equals finite differences.
  auto p = pass<double>(ctx, Competition{mixture(3, 2), 1.0, 2.0}, 10);
  p.extra.noise = noise;
  p.forward();
  p.backward();
  auto& bias = p.params.branch.mixture.gate.scores.bias;
  const auto loss = [&] {
    p.forward();
    return p.saved.branch.mixture.gate.auxiliary(0);
  };
  for (Index e = 0; e < 3; ++e) {
    const double before = bias(e), h = 1e-5;
    bias(e) = before + h;
    const double above = loss();
    bias(e) = before - h;
    const double below = loss();
    bias(e) = before;
    CHECK(p.grads.branch.mixture.gate.scores.bias(e) == doctest::Approx((above - below) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("Competition: without noise or with probability 0 it is the mixture") {
  Cpu::Context ctx(1);
  using Gate = WithAuxiliary<SoftmaxTopK, Balance>;
  const Mixture inner{Gate{.scores = {.experts = 4}, .auxiliary = {Balance{.weight = 0.2}}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
  auto expected = pass<double>(ctx, inner, 12);
  expected.forward();
  expected.backward();
  const auto check = [&](auto p) {
    p.forward();
    p.backward();
    CHECK(same_bits(p.outcome(), expected.outcome()));
    CHECK(p.saved.branch.mixture.gate.auxiliary(0) == expected.saved.branch.gate.auxiliary(0));
  };
  check(pass<double>(ctx, Competition{inner, 1.0}, 12));
  auto never = pass<double>(ctx, Competition{inner, 0.0}, 12);
  never.extra.noise = noise;
  check(std::move(never));
  auto call = pass<double>(ctx, Competition{inner, 1.0}, 12);
  call.extra = {.noise = noise, .probability = 0.0};
  check(std::move(call));
}

TEST_CASE("Competition: one expert has the output of the mixture") {
  Cpu::Context ctx(1);
  auto plain = pass<double>(ctx, mixture(1, 1), 12);
  auto competing = pass<double>(ctx, Competition{mixture(1, 1), 1.0}, 12);
  competing.extra.noise = noise;
  for (const auto run : {0, 1}) {
    run == 0 ? (plain.forward(), competing.forward()) : (plain.backward(), competing.backward());
    CHECK(same_bits(plain.outcome(), competing.outcome()));
  }
  CHECK(competing.saved.branch.mixture.gate.auxiliary(0) == 0);
}

TEST_CASE("Competition (5): the share of steps equals the probability, each layer draws its own number") {
  const Index steps = 2000;
  const Stack stack{Residual{update::Plain{}, Competition{mixture(2, 1), 0.3}}, 2};
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, stack, 2);
  Index each[2] = {}, both = 0;
  for (Index i = 0; i < steps; ++i) {
    p.extra.noise.random = Random{Seed{11}, std::uint64_t(i)};
    p.forward();
    bool competed[2] = {};
    Index layer = 0;
    for_each_mixture(p.saved, [&](const auto& of) { competed[layer++] = of.gate.auxiliary.size() == 1; });
    REQUIRE(layer == 2);
    for (const int l : {0, 1}) each[l] += competed[l];
    both += competed[0] && competed[1];
  }
  const auto near = [&](Index count, double share) {
    return std::abs(double(count) - share * double(steps)) < 4 * std::sqrt(share * (1 - share) * double(steps));
  };
  CHECK(near(each[0], 0.3));
  CHECK(near(each[1], 0.3));
  CHECK(near(both, 0.09));
}

TEST_CASE("Competition: the router learns to predict the winners") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx,
                  Competition{mixture(4, 1), 1.0, 50.0, Affinity::norm},
                  MeanSquaredError{},
                  optim::AdamW{.lr = 0.01},
                  Seed{1},
                  Element<double>{}};
  const auto agreement = [&] {
    const auto x = uniform_tensor<double>(ctx, Seed{99}, 1.0, 200, dim);
    const auto& p = trainer.params.branch.mixture;
    const auto expected = in_loops(p, x, 1, Affinity::norm, {});
    int count = 0;
    for (Index n = 0; n < 200; ++n)
      count += naive::best(naive::logits(p.gate.scores, naive::row(x, n)), 1)[0] == expected.winners[std::size_t(n)];
    return count;
  };
  const int before = agreement();
  for (Index i = 0; i < 300; ++i) {
    const auto x = uniform_tensor<double>(ctx, Seed{7}.fork(std::uint64_t(i)), 1.0, 64, dim);
    trainer.step(x, x, {.noise = {trainer.noise()}});
  }
  CAPTURE(before);
  CHECK(agreement() > 150);
  CHECK(before < 120);
}

TEST_CASE("Competition: a resumed run has the same bits, on any number of threads") {
  const auto path = std::filesystem::temp_directory_path() / "gatefold_competition.safetensors";
  Run whole, other(3);
  for (Index i = 0; i < 8; ++i) whole.step(i), other.step(i);
  CHECK(whole.competitions > 0);
  CHECK(whole.competitions < 16);
  CHECK(same_bits(values(whole.trainer.params), values(other.trainer.params)));
  {
    Run first;
    for (Index i = 0; i < 4; ++i) first.step(i);
    save_checkpoint(path, first.trainer);
  }
  Run second(2);
  load_checkpoint(path, second.trainer);
  std::filesystem::remove(path);
  for (Index i = 4; i < 8; ++i) second.step(i);
  CHECK(same_bits(values(whole.trainer.params), values(second.trainer.params)));
}

TEST_CASE("Competition: a rule that evaluates twice counts the router loss once") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{update::SharpnessAware{}, Competition{mixture(3, 2), 1.0}}, 8);
  p.extra.noise = noise;
  p.forward();
  int losses = 0, evaluations = 0;
  for_each_mixture(p.saved, [&](const auto& of) {
    losses += of.gate.auxiliary.size() == 1;
    ++evaluations;
  });
  CHECK(evaluations == 2);
  CHECK(losses == 1);
}

TEST_CASE("Competition: experts with dropout draw the numbers of the mixture") {
  Cpu::Context ctx(1);
  const Mixture inner{SoftmaxTopK{.scores = {.experts = 1}, .selection = {.k = 1}},
                      HiddenDropout{0.5, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 8}}};
  auto plain = pass<double>(ctx, inner, 9);
  plain.extra.noise = noise;
  auto competing = pass<double>(ctx, Competition{inner, 1.0}, 9);
  competing.extra = {.noise = noise, .branch = {.noise = noise}};
  plain.forward();
  competing.forward();
  CHECK(same_bits(values(plain.y), values(competing.y)));
}

TEST_CASE("Competition: an expert with NaN never wins") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Competition{mixture(3, 2), 1.0}, 6);
  p.extra.noise = noise;
  for (Index d = 0; d < dim; ++d) p.params.branch.mixture.expert.down_bias(1, d) = quiet_nan;
  p.forward();
  for (Index i = 0; i < 12; ++i) CHECK(p.saved.branch.mixture.plan.expert(i) != 1);
}

TEST_CASE("Competition: empty batches have no loss and no gradient") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Competition{mixture(3, 2), 1.0}, 0);
  p.extra.noise = noise;
  p.forward();
  p.backward();
  CHECK(p.saved.branch.mixture.gate.auxiliary(0) == 0);
  for (const double g : values(p.grads)) CHECK(g == 0);
}

TEST_CASE("Competition: wrong options and missing noise throw") {
  Cpu::Context ctx(1);
  const auto message = [&](double probability, double weight, std::optional<double> of_call = {}) {
    return message_of([&] {
      auto p = pass<double>(ctx, Competition{mixture(3, 2), probability, weight}, 2);
      p.extra.probability = of_call;
      p.forward();
    });
  };
  CHECK(message(1.5, 1) == "Competition: probability: expected 0 <= probability <= 1, got 1.5");
  CHECK(message(quiet_nan, 1) == "Competition: probability: expected 0 <= probability <= 1, got nan");
  CHECK(message(0.5, HUGE_VAL) == "Competition: weight: expected a finite number, got inf");
  CHECK(message(0.5, 1, -1.0) == "Competition: extra.probability: expected 0 <= probability <= 1, got -1");
  Trainer trainer{ctx, Competition{mixture(3, 2)}, MeanSquaredError{}, optim::AdamW{}, Seed{1}, Element<double>{}};
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1.0, 4, dim);
  CHECK(message_of([&] { trainer.step(x, x); }) ==
        "Competition: extra.noise: expected random numbers in a training step (for example trainer.noise()), or "
        "probability 0, got none");
  auto p = pass<double>(ctx, Competition{mixture(3, 2), 1.0}, 2);
  p.extra.noise = noise;
  p.forward();
  p.extra.noise = {};
  CHECK(message_of([&] { p.backward(); }) ==
        "Competition.backward: extra: expected the noise and the probability of forward, got values with which no "
        "experts compete");
}
