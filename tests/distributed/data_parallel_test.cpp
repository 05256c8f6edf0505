#include "gatefold/distributed/data_parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/distributed/sync_norm.hpp"
#include "gatefold/distributed/zero_optimizer.hpp"
#include "gatefold/gatefold.hpp"
#include "support/larger.hpp"

using namespace gatefold;

namespace {

constexpr Index items = 24, words = 13, dim = 6, experts = 4, classes = 5, steps = 5;

/// The losses of a run, and its parameters in the order of the model with all experts.
struct Run {
  std::vector<double> losses;
  std::vector<std::vector<double>> params;
};

const auto mixture = Mixture{WithAuxiliary<SoftmaxTopK, Balance>{.scores = {.experts = experts}, .selection = {.k = 2}},
                             Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}};
auto model_of(const auto& branch) {
  return Chain{Embedding{.vocabulary = words, .model_dim = dim},
               Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, branch}},
               Linear{.model_dim = dim, .output_dim = classes}};
}
/// Ids and labels of each step's batch; some labels do not count.
std::vector<Index> ids(Index step) {
  std::vector<Index> all;
  for (Index n = 0; n < items; ++n) all.push_back((n * 5 + step * 3) % (words - 2));
  return all;
}
std::vector<Index> labels(Index step) {
  std::vector<Index> all;
  for (Index n = 0; n < items; ++n) all.push_back(n % 7 == 2 ? -1 : (n + step) % classes);
  return all;
}

template <class O>
Run alone(const O& optimizer) {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model_of(mixture), CrossEntropy{.ignore = -1}, optimizer, Seed{3}, Element<double>{}};
  Run run;
  for (Index i = 0; i < steps; ++i) {
    const auto x = ids(i), y = labels(i);
    run.losses.push_back(trainer.step(x, y));
  }
  for_each_tensor([&](const Name&, const auto& t) { run.params.emplace_back(t.data(), t.data() + t.size()); },
                  trainer.params);
  return run;
}

template <class O>
void check_run(const O& optimizer) {
  const Run expected = alone(optimizer);
  for (Index shards : {1, 2, 3, 4}) {
    std::vector<Run> runs(static_cast<std::size_t>(shards));
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx,
                      model_of(dist::ExpertParallel{mixture, &shard}),
                      dist::LossOfShards{CrossEntropy{.ignore = -1}, &shard},
                      dist::DataParallel{optimizer, &shard},
                      Seed{3},
                      Element<double>{}};
      Run& run = runs[static_cast<std::size_t>(shard.index())];
      for (Index i = 0; i < steps; ++i) {
        auto mine = shard.part_of(items);
        if (i == 1 && shards > 1) {  // shard 0 has no items in this step
          const auto others = dist::Range::of(items, shard.index() - 1, shards - 1);
          mine = shard.index() == 0 ? dist::Range{} : others;
        }
        const auto x = ids(i), y = labels(i);
        run.losses.push_back(trainer.step(View<const Index, 1, Cpu>(x).rows(mine.first, mine.count),
                                          View<const Index, 1, Cpu>(y).rows(mine.first, mine.count)));
      }
      for_each_tensor([&](const Name&, const auto& t) { run.params.emplace_back(t.data(), t.data() + t.size()); },
                      trainer.params);
    });
    CAPTURE(shards);
    for (const Run& run : runs) CHECK(run.losses == runs[0].losses);  // all shards have the same losses, bit for bit
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
      CHECK(std::abs(runs[0].losses[i] - expected.losses[i]) <= 1e-13 * expected.losses[i]);
    for (std::size_t i = 0; i < expected.params.size(); ++i) {
      std::vector<double> all;
      if (runs[0].params[i].size() == expected.params[i].size()) {  // a tensor that all shards hold
        all = runs[0].params[i];
        for (const Run& run : runs) CHECK(run.params[i] == all);
      } else {
        for (const Run& run : runs) all.insert(all.end(), run.params[i].begin(), run.params[i].end());
      }
      REQUIRE(all.size() == expected.params[i].size());
      double difference = 0;
      for (std::size_t k = 0; k < all.size(); ++k)
        difference = support::larger(difference, std::abs(all[k] - expected.params[i][k]));
      CHECK(difference <= 1e-11);  // Adam divides by √v, which is small where gradients are small
    }
  }
}

}  // namespace

TEST_CASE("DataParallel: steps equal one process with the whole batch") {
  check_run(optim::Sgd{.lr = 0.3, .momentum = 0.9});
  check_run(optim::Clipped{optim::Sgd{.lr = 0.3}, 0.1});
  check_run(optim::Scheduled{optim::Clipped{optim::AdamW{.lr = 0.01, .epsilon = 1e-4}, 0.05},
                             optim::WarmupCosine{.warmup = 2, .total = 9}});
}

TEST_CASE("DataParallel: averages equal the averages of one process") {
  const optim::AdamW adam{.lr = 0.01, .epsilon = 1e-4};
  check_run(optim::Clipped{optim::Averaged{adam, 0.7}, 0.05});
  const auto loss_of_averages = [](auto& trainer, const auto& part_of) {
    for (Index i = 0; i < steps; ++i) {
      const auto x = ids(i), y = labels(i);
      trainer.step(part_of(x), part_of(y));
    }
    swap_averages(trainer);
    const auto x = ids(0), y = labels(0);
    return trainer.evaluate(part_of(x), part_of(y));
  };
  Cpu::Context one(1);
  const optim::Averaged optimizer{optim::Clipped{adam, 0.05}, 0.7};
  Trainer whole{one, model_of(mixture), CrossEntropy{.ignore = -1}, optimizer, Seed{3}, Element<double>{}};
  const double expected = loss_of_averages(whole, [](const auto& all) { return View<const Index, 1, Cpu>(all); });
  for (const bool zero : {false, true}) {
    std::vector<double> found(3);
    dist::Alone world;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto run = [&](const auto& of_shard) {
        Trainer trainer{ctx,
                        model_of(dist::ExpertParallel{mixture, &shard}),
                        dist::LossOfShards{CrossEntropy{.ignore = -1}, &shard},
                        dist::DataParallel{of_shard, &shard},
                        Seed{3},
                        Element<double>{}};
        found[static_cast<std::size_t>(shard.index())] = loss_of_averages(trainer, [&](const auto& all) {
          const auto mine = shard.part_of(items);
          return View<const Index, 1, Cpu>(all).rows(mine.first, mine.count);
        });
      };
      if (zero)
        run(optim::Clipped{optim::Averaged{dist::Zero{adam, &shard}, 0.7}, 0.05});
      else
        run(optimizer);
    });
    for (const double loss : found) CHECK(loss == found[0]);
    CHECK(std::abs(found[0] - expected) <= 1e-12);
  }
}

TEST_CASE("DataParallel: ExpertRates works only if shards hold all experts") {
  const auto factor = [](const Name&, Index e) { return e < 2 ? 0.5 : 2.0; };
  const Mixture plain{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}};
  const auto x = ids(0), y = labels(0);
  Cpu::Context one(1);
  const optim::Clipped optimizer{optim::ExpertRates{optim::Sgd{.lr = 0.5}, factor}, 0.1};
  Trainer whole{one, model_of(plain), CrossEntropy{.ignore = -1}, optimizer, Seed{3}, Element<double>{}};
  whole.step(x, y);
  dist::Alone world;
  std::atomic<int> wrong = 0, refused = 0;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    const auto mine = shard.part_of(items);
    const auto part_of = [&](const auto& all) { return View<const Index, 1, Cpu>(all).rows(mine.first, mine.count); };
    const auto trainer_of = [&](const auto& branch) {
      return Trainer{ctx,
                     model_of(branch),
                     dist::LossOfShards{CrossEntropy{.ignore = -1}, &shard},
                     dist::DataParallel{optimizer, &shard},
                     Seed{3},
                     Element<double>{}};
    };
    auto trainer = trainer_of(plain);
    trainer.step(part_of(x), part_of(y));
    for_each_tensor(
        [&](const Name&, const auto& a, const auto& b) {
          for (Index i = 0; i < a.size(); ++i)
            if (!(std::abs(a.data()[i] - b.data()[i]) <= 1e-13)) ++wrong;
        },
        trainer.params, whole.params);
    try {
      trainer_of(dist::ExpertParallel{plain, &shard});
    } catch (const ArgumentError& error) {
      refused += error.what() == std::string(
                                     "ExpertRates.begin: params: expected a model that holds all its experts, got "
                                     "experts distributed over shards");
    }
  });
  CHECK(wrong == 0);
  CHECK(refused == 2);
}

TEST_CASE("DataParallel: accumulates partial batches, clips with the global norm") {
  // Two parts of a batch and the whole batch give the same gradient, so the same step.
  const auto run = [&](bool parts, Index shards) {
    std::vector<double> first;
    std::mutex mutex;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const Mixture plain{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = 7}};  // no auxiliary loss: it depends on the batch
      Trainer trainer{ctx,
                      model_of(dist::ExpertParallel{plain, &shard}),
                      dist::LossOfShards{CrossEntropy{.ignore = -1}, &shard},
                      dist::DataParallel{optim::Clipped{optim::Sgd{.lr = 0.5}, 0.2}, &shard},
                      Seed{3},
                      Element<double>{}};
      const auto x = ids(0), y = labels(0);
      const auto of = [&](Index begin, Index end) {
        const auto part = dist::Range::of(end - begin, shard.index(), shards);
        return std::pair{View<const Index, 1, Cpu>(x).rows(begin + part.first, part.count),
                         View<const Index, 1, Cpu>(y).rows(begin + part.first, part.count)};
      };
      if (parts) {
        const auto a = of(0, 9), b = of(9, items);
        trainer.accumulate(a.first, a.second);
        trainer.step(b.first, b.second);
      } else {
        const auto all = of(0, items);
        trainer.step(all.first, all.second);
      }
      const std::lock_guard lock(mutex);
      if (shard.index() == 0)
        for_each_tensor([&](const Name&, const auto& t) { first.insert(first.end(), t.data(), t.data() + t.size()); },
                        trainer.params);
    });
    return first;
  };
  for (Index shards : {1, 3}) {
    const auto whole = run(false, shards), parts = run(true, shards);
    double difference = 0;
    for (std::size_t i = 0; i < whole.size(); ++i)
      difference = support::larger(difference, std::abs(whole[i] - parts[i]));
    CHECK(difference <= 1e-14);
  }
}

TEST_CASE("DataParallel: gradients of shards add up to the whole gradient") {
  using Values = std::vector<std::vector<double>>;  // by tensor
  const auto values_of = [](const auto& pack) {
    Values values;
    for_each_tensor([&](const Name&, const auto& t) { values.emplace_back(t.data(), t.data() + t.size()); }, pack);
    return values;
  };
  const auto largest_difference = [](const Values& a, const Values& b) {
    double difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(a[i].size() == b[i].size());
      for (std::size_t k = 0; k < a[i].size(); ++k)
        difference = support::larger(difference, std::abs(a[i][k] - b[i][k]));
    }
    return difference;
  };
  const auto all_x = ids(0), all_y = labels(0);
  Cpu::Context one(1);
  Trainer whole{one, model_of(mixture), CrossEntropy{.ignore = -1}, optim::Sgd{.lr = 0.5}, Seed{3}, Element<double>{}};
  whole.accumulate(all_x, all_y);
  const Values expected = values_of(whole.grads);
  for (const Index shards : {1, 2, 3}) {
    CAPTURE(shards);
    std::vector<Values> terms(static_cast<std::size_t>(shards)), sums = terms, stepped = terms, never = terms;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto begin = [&] {
        return Trainer{ctx,
                       model_of(dist::ExpertParallel{mixture, &shard}),
                       dist::LossOfShards{CrossEntropy{.ignore = -1}, &shard},
                       dist::DataParallel{optim::Sgd{.lr = 0.5}, &shard},
                       Seed{3},
                       Element<double>{}};
      };
      auto trainer = begin(), other = begin();
      const auto i = static_cast<std::size_t>(shard.index());
      const auto mine = shard.part_of(items);
      const auto x = View<const Index, 1, Cpu>(all_x).rows(mine.first, mine.count);
      const auto y = View<const Index, 1, Cpu>(all_y).rows(mine.first, mine.count);
      trainer.accumulate(x, y);
      terms[i] = values_of(trainer.grads);
      trainer.forget();
      // [snippet gradient]
      trainer.accumulate(x, y);
      dist::all_reduce(shard, ctx, trainer.grads);  // the gradient of the batch: shared tensors, experts of this shard
      // [/snippet]
      sums[i] = values_of(trainer.grads);
      trainer.forget();
      trainer.step(x, y);
      stepped[i] = values_of(trainer.params);
      other.step(x, y);
      never[i] = values_of(other.params);
    });
    Values found = sums[0], partial = terms[0];
    for (std::size_t t = 0; t < expected.size(); ++t) {
      if (found[t].size() == expected[t].size()) {  // a tensor that all shards hold
        for (const Values& of : sums) CHECK(of[t] == found[t]);
        continue;
      }
      for (std::size_t j = 1; j < sums.size(); ++j) {
        CHECK(sums[j][t] == terms[j][t]);  // the shard of an expert has its complete gradient
        found[t].insert(found[t].end(), sums[j][t].begin(), sums[j][t].end());
      }
      partial[t] = found[t];
    }
    CHECK(largest_difference(found, expected) <= 1e-14);
    CHECK((largest_difference(partial, expected) > 1e-3) == (shards > 1));
    CHECK(stepped == never);
  }
}

TEST_CASE("DataParallel: a non-finite gradient on one shard stops the step") {
  dist::Alone world;
  std::atomic<int> refused = 0;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, dist::ExpertParallel{mixture, &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optim::AdamW{}, &shard}, Seed{3}};
    auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 4, dim), y = uniform_tensor<float>(ctx, Seed{2}, 1, 4, dim);
    if (shard.index() == 1) y(0, 0) = std::numeric_limits<float>::infinity();
    const std::vector<float> before(
        trainer.params.branch.gate.scores.weight.data(),
        trainer.params.branch.gate.scores.weight.data() + trainer.params.branch.gate.scores.weight.size());
    try {
      trainer.step(x, y);
    } catch (const NotFiniteError&) {
      const auto& w = trainer.params.branch.gate.scores.weight;
      if (before == std::vector<float>(w.data(), w.data() + w.size())) ++refused;
    }
  });
  CHECK(refused == 3);
}

TEST_CASE("DataParallel (1): the placement changes no bit of the norm") {
  Cpu::Context one(1);
  const auto whole = init_params<double, Cpu>(model_of(mixture), one, Seed{3});
  double expected = 0;  // Σ g²
  for_each_tensor(
      [&](const Name&, const auto& t) {
        for (Index i = 0; i < t.size(); ++i) expected += t.data()[i] * t.data()[i];
      },
      whole);
  std::vector<double> found;
  for (const dist::Placement& placement :
       {dist::Placement{}, dist::Placement{{0, 0, 0, 0}}, dist::Placement{{1, 0, 1, 0}}})
    for (Index shards : {2, 3, 4}) {
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context ctx(1);
        const auto model = model_of(dist::ExpertParallel{mixture, &shard, placement});
        const auto grads = init_params<double, Cpu>(model, ctx, Seed{3});
        const dist::DataParallel optimizer{optim::Clipped{optim::Sgd{}}, &shard};
        auto mark = ctx.mark();
        const double total = *optimizer.measure(ctx, grads).total;
        if (shard.index() == 0) found.push_back(total);
      });
    }
  CHECK(std::abs(found[0] - expected) <= 1e-13 * expected);
  CHECK(found == std::vector<double>(9, found[0]));
}

TEST_CASE("DataParallel: Fields, MultiGate and Towers train as one process") {
  const Chain model{Fields{.vocabularies = {9, 4}, .dim = 3, .numeric = 1}, Linear{.model_dim = 7, .output_dim = 4},
                    MultiGate{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                              Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}, 2},
                    Towers{Linear{.model_dim = 4, .output_dim = 1}, 2}};
  const MultiTask losses{TaskLoss{1, MeanSquaredError{}}, TaskLoss{1, MeanSquaredError{}, 0.5}};
  std::vector<double> rows, cosines, sines;
  for (Index n = 0; n < items; ++n) {
    const auto at = static_cast<double>(n);
    for (const double v : {double(n * 5 % 9), double(n % 4), std::sin(at)}) rows.push_back(v);
    cosines.push_back(std::cos(at));
    sines.push_back(std::sin(2 * at));
  }
  const View<const double, 2, Cpu> x(rows.data(), items, 3), first(cosines.data(), items, 1),
      second(sines.data(), items, 1);
  const auto numbers = [](const auto& trainer) {
    std::vector<double> all;
    for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); },
                    trainer.params);
    return all;
  };
  Cpu::Context one(1);
  Trainer alone{one, model, losses, optim::AdamW{.lr = 0.01}, Seed{3}, Element<double>{}};
  std::vector<double> expected_losses;
  for (Index i = 0; i < steps; ++i) expected_losses.push_back(alone.step(x, {first, second}));
  const std::vector<double> expected = numbers(alone);
  for (const Index shards : {1, 2, 3}) {
    std::vector<double> worst(static_cast<std::size_t>(shards), 0);
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx,
                      model,
                      dist::LossOfShards{losses, &shard},
                      dist::DataParallel{optim::AdamW{.lr = 0.01}, &shard},
                      Seed{3},
                      Element<double>{}};
      const auto mine = shard.part_of(items);
      const auto part = [&](const auto& of) { return of.rows(mine.first, mine.count); };
      double& apart = worst[static_cast<std::size_t>(shard.index())];
      for (Index i = 0; i < steps; ++i) {
        const double loss = trainer.step(part(x), {part(first), part(second)});
        apart = support::larger(apart, std::abs(loss - expected_losses[static_cast<std::size_t>(i)]));
      }
      const std::vector<double> found = numbers(trainer);
      for (std::size_t i = 0; i < expected.size(); ++i)
        apart = support::larger(apart, std::abs(found[i] - expected[i]));
    });
    for (const double apart : worst) CHECK(apart < 1e-10);
  }
}

namespace {

using Shard = dist::Shard<dist::Alone>;
template <class O>
constexpr bool given = dist::norms::Of<O>::given;
template <class O>
using Scheduled = optim::Scheduled<O, optim::WarmupCosine>;
using optim::AdamW, optim::Clipped, optim::NormalizedGd, optim::Sgd;

static_assert(given<AdamW> && given<Clipped<AdamW>> && given<Scheduled<Clipped<AdamW>>>);
static_assert(given<Clipped<Scheduled<AdamW>>>);
static_assert(given<Clipped<InGroups<AdamW, Sgd>>> && given<Scheduled<Clipped<dist::Zero<AdamW, Shard>>>>);
static_assert(!given<NormalizedGd> && !given<Clipped<Clipped<Sgd>>> && !given<Clipped<NormalizedGd>>);
static_assert(!given<InGroups<Clipped<Sgd>, Sgd>> && !given<InGroups<Sgd, Scheduled<Clipped<Sgd>>>>);
static_assert(!given<Clipped<InGroups<Sgd, InGroups<Sgd, NormalizedGd>>>>);
static_assert(!given<dist::Zero<InGroups<Clipped<Sgd>, Sgd>, Shard>>);
// SyncNorm computes the norm over all shards itself. It does not work inside Zero, which passes only some rows of a
// tensor to it.
using Synced = dist::SyncNorm<NormalizedGd, Shard>;
static_assert(given<Synced> && given<InGroups<Synced, Sgd>> && given<Clipped<Scheduled<Synced>>>);
static_assert(!given<InGroups<Synced, NormalizedGd>>);
template <class O>
constexpr bool by_element = dist::norms::Of<O>::by_element;
static_assert(by_element<AdamW> && by_element<InGroups<AdamW, Scheduled<Sgd>>>);
static_assert(!by_element<NormalizedGd> && !by_element<Clipped<Sgd>> && !by_element<InGroups<Synced, Sgd>>);
template <class O>
constexpr bool in_rows = dist::norms::Of<O>::in_rows;
using Factor = double (*)(const Name&, Index);
using Averaged = optim::Averaged<AdamW>;
using Rates = optim::ExpertRates<AdamW, Factor>;
static_assert(given<Averaged> && given<Clipped<Averaged>> && given<optim::Averaged<Clipped<AdamW>>> && given<Rates>);
static_assert(!given<optim::Averaged<NormalizedGd>> && by_element<Averaged> &&
              !by_element<optim::Averaged<Clipped<Sgd>>>);
static_assert(in_rows<AdamW> && in_rows<InGroups<AdamW, Scheduled<Sgd>>>);
static_assert(!in_rows<Averaged> && !in_rows<Rates> && !in_rows<InGroups<Sgd, Scheduled<Rates>>>);
static_assert(!in_rows<optim::Averaged<Sgd>> && in_rows<dist::Zero<Sgd, Shard>>);

}  // namespace

TEST_CASE("norms: detects optimizers with a norm over one shard's gradients") { CHECK(given<Clipped<AdamW>>); }
