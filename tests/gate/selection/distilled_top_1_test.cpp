#include "gatefold/gate/selection/distilled_top_1.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4, items = 24;
const DistilledTop1 small{.vocabulary = 9, .router_dim = 3, .balance = 0.7, .distillation = 0.4};

std::vector<Index> tokens(Index count) {
  std::vector<Index> ids;
  for (Index n = 0; n < count; ++n) ids.push_back((5 * n + n * n) % 8);  // token 8 does not occur
  return ids;
}
auto mixture(Index experts, const DistilledTop1& selection = small) {
  return Mixture{StableMoe{.scores = {.experts = experts}, .selection = selection}, Linear{.model_dim = dim}};
}
naive::Row router_scores(const auto& p, Index id) {
  return naive::affine(
      naive::row(p.embedding, id), p.centroid.extent(0), [&](Index r, Index e) { return p.centroid(e, r); },
      [](Index) { return 0.0; });
}
double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

struct WithIds {
  const std::vector<Index>* ids;
  bool distilled;
  template <class T>
  Extra<StableMoe, T, Cpu> operator()(Element<T>, Index first, Index count) const {
    return {.selection = {.ids = View<const Index, 1, Cpu>(*ids).rows(first, count), .distilled = distilled}};
  }
};

/// A training run of StableMoE. The targets depend on the items and on their tokens.
struct Run {
  using Optimizer = InGroups<optim::AdamW, optim::AdamW>;
  using Model = decltype(Residual{update::Plain{}, mixture(3)});
  Cpu::Context ctx;
  Trainer<double, Cpu::Context, Model, MeanSquaredError, Optimizer> trainer;
  std::vector<Index> ids = tokens(items);

  explicit Run(int threads = 1)
      : ctx(threads),
        trainer(ctx, Model{update::Plain{}, mixture(3)}, MeanSquaredError{},
                Optimizer{is_distilled_router, optim::AdamW{.lr = 0.03}, optim::AdamW{.lr = 0.01, .decay = 0.1}},
                Seed{3}, Element<double>{}) {}
  void step(Index i, bool distilled) {
    if (distilled) trainer.optimizer.first.lr = 0;
    const auto x = uniform_tensor<double>(ctx, Seed{7}.fork(std::uint64_t(i)), 1.0, items, dim);
    Tensor<double, 2, Cpu> target(items, dim);
    for (Index n = 0; n < items; ++n)
      for (Index d = 0; d < dim; ++d) target(n, d) = x(n, d) * (ids[std::size_t(n)] % 3 == d ? 2 : 0.5);
    trainer.step(x, target, {.selection = {.ids = ids, .distilled = distilled}});
  }
  const auto& router() const { return trainer.params.branch.gate.selection; }
};

}  // namespace

TEST_CASE("DistilledTop1 (1), (2), (3): picks by rank or by token, weights by sigmoid") {
  Cpu::Context ctx(2);
  const auto ids = tokens(items);
  for (const Index experts : {1, 3, 65})
    for (const bool distilled : {false, true}) {
      CAPTURE(experts);
      CAPTURE(distilled);
      auto p = pass<double>(ctx, mixture(experts), items);
      p.extra.selection = {.ids = ids, .distilled = distilled};
      p.forward();
      const auto& plan = p.saved.branch.plan;
      const auto& gate = p.params.branch.gate;
      REQUIRE(plan.expert.size() == items);
      for (Index n = 0; n < items; ++n) {
        const auto z = naive::logits(gate.scores, naive::row(p.x, n));
        const auto s = router_scores(gate.selection, ids[std::size_t(n)]);
        const Index a = naive::best(distilled ? s : z, 1)[0];
        CHECK(plan.item(n) == n);
        CHECK(plan.expert(n) == a);
        CHECK(plan.weight(n) == doctest::Approx(sigmoid(z[std::size_t(a)])).epsilon(1e-14));
      }
      const auto y = values(p.y);
      fill(ctx, p.y, quiet_nan);
      p.infer();
      CHECK(same_bits(values(p.y), y));
    }
}

TEST_CASE("DistilledTop1 (4), (5): the loss equals loops, without padding; stage 2 has none") {
  Cpu::Context ctx(1);
  const auto ids = tokens(items);
  std::vector<double> mask(std::size_t(items), 1);
  mask[2] = mask[7] = mask[8] = 0;
  for (const bool padding : {false, true}) {
    CAPTURE(padding);
    auto p = pass<double>(ctx, mixture(4), items);
    p.extra.selection.ids = ids;
    if (padding) p.extra.valid = mask;
    p.forward();
    const auto& gate = p.params.branch.gate;
    std::vector<double> load(4, 0), weight(4, 0);
    double count = 0, distillation = 0;
    for (Index n = 0; n < items; ++n) {
      if (padding && mask[std::size_t(n)] == 0) continue;
      const auto z = naive::logits(gate.scores, naive::row(p.x, n));
      const auto a = std::size_t(naive::best(z, 1)[0]);
      ++count, ++load[a], weight[a] += sigmoid(z[a]);
      distillation -= std::log(naive::softmax(router_scores(gate.selection, ids[std::size_t(n)]))[a]);
    }
    double balance = 0;
    for (std::size_t e = 0; e < 4; ++e) balance += (load[e] - count / 4) / (count / 4) * weight[e];
    REQUIRE(std::abs(balance) > 0.1);
    REQUIRE(p.saved.branch.gate.auxiliary.size() == 1);
    CHECK(p.saved.branch.gate.auxiliary(0) ==
          doctest::Approx((0.7 * balance + 0.4 * distillation) / count).epsilon(1e-13));

    p.extra.selection.distilled = true;
    p.forward();
    CHECK(p.saved.branch.gate.auxiliary(0) == 0);
    p.backward();
    for (const double g : values(p.grads.branch.gate.selection)) CHECK(g == 0);
  }
}

TEST_CASE("DistilledTop1: gradients of the total loss equal finite differences in both stages") {
  const auto ids = tokens(items);
  for (const bool distilled : {false, true}) {
    CAPTURE(distilled);
    check::ConformanceOptions options{.gradients = {.items = items}};
    if (distilled)
      for (const std::string layer : {"layers.0", "layers.1"})
        for (const char* name : {".branch.gate.selection.embedding", ".branch.gate.selection.centroid"})
          options.gradients.zero.push_back(layer + name);
    const auto report = check::conformance<Cpu, double>(Stack{Residual{update::Plain{}, mixture(3)}, 2}, options,
                                                        WithIds{&ids, distilled});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("DistilledTop1: one expert equals that expert times a sigmoid") {
  Cpu::Context ctx(1);
  const auto ids = tokens(items);
  auto p = pass<double>(ctx, mixture(1), items);
  p.extra.selection.ids = ids;
  p.forward();
  const auto& of = p.params.branch;
  for (Index n = 0; n < items; ++n) {
    const auto x = naive::row(p.x, n);
    const auto z = naive::affine(
        x, dim, [&](Index d, Index o) { return of.expert.weight(0, d, o); },
        [&](Index o) { return of.expert.bias(0, o); });
    for (Index o = 0; o < dim; ++o)
      CHECK(p.y(n, o) ==
            doctest::Approx(sigmoid(naive::logits(of.gate.scores, x)[0]) * z[std::size_t(o)]).epsilon(1e-13));
  }
  CHECK(p.saved.branch.gate.auxiliary(0) == 0);  // an even load, and softmax = 1
}

TEST_CASE("DistilledTop1: stage 1 teaches the router of tokens the picks of the gate") {
  Run run;
  const auto agreeing = [&] {
    Index count = 0;
    for (const Index id : run.ids) count += naive::best(router_scores(run.router(), id), 1)[0] == 2;
    return count;
  };
  // The gate picks expert 2 for all items.
  auto& scores = run.trainer.params.branch.gate.scores;
  fill(run.ctx, scores.weight.view(), 0);
  for (Index e = 0; e < 3; ++e) scores.bias(e) = e == 2 ? 5 : -5;
  CHECK(agreeing() < items);
  for (Index i = 0; i < 60; ++i) run.step(i, false);
  CHECK(agreeing() == items);
}

TEST_CASE("DistilledTop1: stage 2 keeps the router and the expert of each token") {
  Run run;
  for (Index i = 0; i < 20; ++i) run.step(i, false);
  const auto router = values(run.router());
  std::vector<Index> expert(9, -1);
  for (Index i = 20; i < 30; ++i) {
    run.step(i, true);
    CHECK(same_bits(values(run.router()), router));
    for (Index n = 0; n < items; ++n) {
      Index& of_token = expert[std::size_t(run.ids[std::size_t(n)])];
      if (of_token < 0) of_token = naive::best(router_scores(run.router(), run.ids[std::size_t(n)]), 1)[0];
      for_each_mixture(run.trainer.saved, [&](const auto& of) { CHECK(of.plan.expert(n) == of_token); });
    }
  }
}

TEST_CASE("DistilledTop1: a run resumed between stages has the same bits, on any threads") {
  const auto path = std::filesystem::temp_directory_path() / "gatefold_distilled_top_1.safetensors";
  Run whole, other(3);
  for (Index i = 0; i < 6; ++i) whole.step(i, i >= 3), other.step(i, i >= 3);
  CHECK(same_bits(values(whole.trainer.params), values(other.trainer.params)));
  {
    Run first;
    for (Index i = 0; i < 3; ++i) first.step(i, false);
    save_checkpoint(path, first.trainer);
  }
  Run second(2);
  load_checkpoint(path, second.trainer);
  std::filesystem::remove(path);
  for (Index i = 3; i < 6; ++i) second.step(i, true);
  CHECK(same_bits(values(whole.trainer.params), values(second.trainer.params)));
}

TEST_CASE("DistilledTop1: empty batches have no loss and no gradient") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, mixture(3), 0);
  p.forward();
  p.backward();
  CHECK(p.saved.branch.gate.auxiliary(0) == 0);
  for (const double g : values(p.grads)) CHECK(g == 0);
}

TEST_CASE("DistilledTop1: wrong options, ids and shapes throw before anything is written") {
  Cpu::Context ctx(1);
  const auto of_options = [&](const DistilledTop1& of) {
    return message_of([&] { pass<double>(ctx, mixture(3, of), 2); });
  };
  CHECK(of_options({}) == "DistilledTop1: vocabulary: expected at least 1, got 0");
  CHECK(of_options({.vocabulary = 2, .router_dim = 0}) == "DistilledTop1: router_dim: expected at least 1, got 0");
  CHECK(of_options({.vocabulary = 2, .balance = HUGE_VAL}) ==
        "DistilledTop1: balance: expected a finite number, got inf");
  CHECK(of_options({.vocabulary = 2, .distillation = HUGE_VAL}) ==
        "DistilledTop1: distillation: expected a finite number, got inf");
  const auto of_ids = [&](const std::vector<Index>& ids) {
    auto p = pass<double>(ctx, mixture(3), 2);
    p.extra.selection.ids = ids;
    const auto message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(of_ids({}) == "DistilledTop1: extra.ids: expected [2], got [0]");
  CHECK(of_ids({1, 9}) == "DistilledTop1: extra.ids[1]: expected an id from 0 to 8, got 9");
  CHECK(of_ids({-1, 0}) == "DistilledTop1: extra.ids[0]: expected an id from 0 to 8, got -1");
  auto p = pass<double>(ctx, mixture(3), 2);
  p.params.branch.gate.selection.centroid.resize(3, 2);
  const std::vector<Index> ids{0, 1};
  p.extra.selection.ids = ids;
  CHECK(message_of([&] { p.forward(); }) == "DistilledTop1: params.centroid: expected [3, 3], got [3, 2]");
}
