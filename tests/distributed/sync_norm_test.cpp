#include "gatefold/distributed/sync_norm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/gatefold.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using support::values;

namespace {

using Numbers = std::vector<double>;
constexpr Index dim = 4, experts = 3, layers = 2;
constexpr double rho = 0.4;

/// Sends every item to every expert, so that the loss is smooth.
auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = experts}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}};
}
auto model_of(const auto& rule, const auto& branch) { return Stack{Residual{rule, branch}, layers}; }
const update::SharpnessAware of_batch{.rho = rho, .gamma = 0.9, .norm = update::Norm::batch};

/// Results of all items in their order, and the gradients of all parameters.
struct Found {
  Numbers y, inferred, dx;
  std::vector<Numbers> grads;
};
void append(Numbers& to, const Numbers& more) { to.insert(to.end(), more.begin(), more.end()); }

/// Runs a model on items x, with the adjoint of Σ dy·y.
template <class L, class V>
Found pass(const L& model, Cpu::Context& ctx, const V& x, const V& dy) {
  auto p = support::pass<double>(ctx, model, x.extent(0), Seed{4});
  copy(ctx, x, p.x.view());
  copy(ctx, dy, p.dy.view());
  p.infer();
  Found found{{}, values(p.y), {}, {}};
  p.layer.begin(ctx, p.params, x.extent(0), p.carry);
  p.forward();
  p.backward();
  found.y = values(p.y);
  found.dx = values(p.dx);
  for_each_tensor([&](const Name&, const auto& g) { found.grads.push_back(values(g)); }, p.grads);
  return found;
}
/// Runs a model on shards and joins the results. Items and experts' gradients are joined in order, and all other
/// gradients are added up.
Found pass_on_shards(Index shards, int threads, const Tensor<double, 2, Cpu>& x, const Tensor<double, 2, Cpu>& dy,
                     const update::SharpnessAware& rule = of_batch) {
  std::vector<Found> parts(static_cast<std::size_t>(shards));
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(threads);
    const auto mine = shard.part_of(x.extent(0));
    parts[static_cast<std::size_t>(shard.index())] =
        pass(model_of(dist::SyncNorm{rule, &shard}, dist::ExpertParallel{mixture(), &shard}), ctx,
             x.view().rows(mine.first, mine.count), dy.view().rows(mine.first, mine.count));
  });
  Cpu::Context ctx(1);
  std::vector<std::string> names;
  const auto params = init_params<double, Cpu>(model_of(of_batch, mixture()), ctx, Seed{4});
  for_each_tensor([&](const Name& at, const auto&) { names.push_back(at.str()); }, params);
  Found all;
  all.grads.resize(names.size());
  for (const Found& part : parts) {
    append(all.y, part.y), append(all.inferred, part.inferred), append(all.dx, part.dx);
    for (std::size_t i = 0; i < names.size(); ++i) {
      Numbers& sum = all.grads[i];
      if (names[i].find("expert.") != std::string::npos) {
        append(sum, part.grads[i]);
      } else {
        sum.resize(part.grads[i].size());
        for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += part.grads[i][k];
      }
    }
  }
  return all;
}
double largest(const Numbers& a) {
  double m = 0;
  for (const double v : a) m = support::larger(m, std::abs(v));
  return m;
}
/// Returns the largest difference relative to the largest value of b.
double difference(const Numbers& a, const Numbers& b) {
  REQUIRE(a.size() == b.size());
  Numbers d(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) d[i] = a[i] - b[i];
  return largest(d) / largest(b);
}

}  // namespace

TEST_CASE("SyncNorm (1): values and gradients match one process within rounding") {
  constexpr Index items = 6;
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
             dy = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  const Found one = pass(model_of(of_batch, mixture()), ctx, x.view(), dy.view());
  for (const Index shards : {1, 2, 3, 7}) {  // of seven shards, one has no items
    CAPTURE(shards);
    const Found all = pass_on_shards(shards, 1, x, dy);
    CHECK(difference(all.y, one.y) <= 1e-14);
    CHECK(all.inferred == all.y);
    CHECK(difference(all.dx, one.dx) <= 1e-13);
    for (std::size_t i = 0; i < one.grads.size(); ++i) CHECK(difference(all.grads[i], one.grads[i]) <= 1e-13);
    const Found threads = pass_on_shards(shards, 2, x, dy);
    CHECK(threads.y == all.y);
    CHECK(threads.dx == all.dx);
    CHECK(threads.grads == all.grads);
  }
}

TEST_CASE("SyncNorm (1): the norm covers all shards, even empty shards") {
  // u(x) = x: z = x − ρ x/‖x‖, y = x + γ z.
  dist::Alone world;
  std::vector<Numbers> parts(4);
  const Numbers x{3, 0, 0, 4, 12, 0};  // ‖x‖ = 13
  dist::run(world, 4, [&](auto& shard) {
    Cpu::Context ctx(1);
    const Index items = shard.index() == 1 ? 0 : 1, first = shard.index() == 0 ? 0 : shard.index() - 1;
    const View<const double, 2, Cpu> mine(x.data() + 2 * first, items, 2);
    Tensor<double, 2, Cpu> y(items, 2);
    Nothing<double, Cpu> none;
    const auto same = make_evaluation<double, Cpu>([&](auto point, auto u, int, const auto& step) {
      copy(ctx, point, u);
      run_step(ctx, u, step);
    });
    infer_rule<double, Cpu>(dist::SyncNorm{of_batch, &shard}, ctx, none, mine, none, same, y);
    parts[static_cast<std::size_t>(shard.index())] = values(y);
  });
  Numbers y;
  for (const Numbers& part : parts) append(y, part);
  REQUIRE(y.size() == x.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(y[i] - (x[i] + 0.9 * (x[i] - rho * x[i] / 13))) <= 1e-14);
}

TEST_CASE("SyncNorm (1): gradients on shards equal central differences") {
  constexpr Index items = 4, shards = 3;
  Cpu::Context ctx(1);
  auto x = uniform_tensor<double>(ctx, Seed{3}, 1, items, dim);
  const auto dy = uniform_tensor<double>(ctx, Seed{5}, 1, items, dim);
  const Numbers dx = pass_on_shards(shards, 1, x, dy).dx;
  const auto loss = [&] {
    const Numbers y = pass_on_shards(shards, 1, x, dy).y;
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy.data()[i];
    return sum;
  };
  Numbers numeric;
  for (Index i = 0; i < x.size(); ++i) {
    constexpr double h = 1e-5;
    double& v = x.data()[i];
    const double at = v;
    v = at + h;
    const double above = loss();
    v = at - h;
    numeric.push_back((above - loss()) / (2 * h));
    v = at;
  }
  for (std::size_t i = 0; i < numeric.size(); ++i)
    CHECK(std::abs(numeric[i] - dx[i]) <= 1e-6 * std::max(std::abs(numeric[i]), std::abs(dx[i])) + 1e-9 * largest(dx));
}

TEST_CASE("SyncNorm: norms of items are bit-identical and exchange no data") {
  constexpr Index items = 5;
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
             dy = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
  const update::SharpnessAware of_items{.rho = rho};
  const Found one = pass(model_of(of_items, mixture()), ctx, x.view(), dy.view());
  CHECK(pass_on_shards(3, 1, x, dy, of_items).dx == one.dx);
  dist::Alone world;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context here(1);
    pass(Residual{dist::SyncNorm{of_items, &shard}, OneExpert{Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}}}, here,
         x.view(), dy.view());
    CHECK(shard.traffic().exchanges == 0);
  });
}

TEST_CASE("SyncNorm: throws without a shard or with invalid options") {
  dist::Alone world;
  dist::run(world, 1, [](auto& shard) {
    Nothing<double, Cpu> none;
    dist::SyncNorm rule{of_batch, &shard};
    rule.rule.rho = -1;
    CHECK_THROWS_WITH_AS((rule.template validate<double, Cpu>(none, 1, 1, none)),
                         "SharpnessAware: rho: expected at least 0, got -1", ArgumentError);
    rule.shard = nullptr;
    CHECK_THROWS_WITH_AS((rule.template validate<double, Cpu>(none, 1, 1, none)),
                         "SyncNorm: shard: expected the address of a shard of dist::run, got null", ArgumentError);
  });
}

using dist::Placement;

namespace {

constexpr Index five = 5;  // experts
const Mlp<Gelu> expert{.model_dim = dim, .hidden_dim = 3};

/// Two layers of experts, and a tensor with a row for each expert. All shards hold the whole tensor.
template <class ExpertsP>
struct Bank {
  ExpertsP first, second;
  Tensor<double, 2, Cpu> row;  // [E, 2]
  GATEFOLD_PACK(first, second, row)
};
using OfExperts = Params<Mlp<Gelu>, double, Cpu>;
using Whole = Bank<OfExperts>;
using OfShard = Bank<dist::Sharded<OfExperts>>;

Whole random_bank(Cpu::Context& ctx, std::uint64_t seed) {
  Whole bank{expert.init<double, Cpu>(ctx, five, Seed{1}), expert.init<double, Cpu>(ctx, five, Seed{1}),
             Tensor<double, 2, Cpu>(five, 2)};
  const auto fill = [&](const Name&, auto& t) {
    const auto values = uniform_tensor<double>(ctx, Seed{++seed}, 1, 1, t.size());
    std::copy(values.data(), values.data() + t.size(), t.data());
  };
  for_each_tensor(fill, bank);
  return bank;
}
/// Returns the part of a shard. The two layers have different placements.
OfShard part_of(Cpu::Context& ctx, Index shard, Index shards, Whole& whole) {
  Placement other{{}};
  for (Index e = 0; e < five; ++e) other.shard_of.push_back(e * e % shards);
  OfShard part;
  dist::take_experts(ctx, expert, Placement::even(five, shards), shard, shards, part.first, whole.first);
  dist::take_experts(ctx, expert, other, shard, shards, part.second, whole.second);
  part.row.resize(five, 2);
  copy(ctx, View<const double, 2, Cpu>(whole.row), part.row.view());
  return part;
}

/// Computes a step of NormalizedGd in loops.
Whole stepped(Cpu::Context& ctx, const optim::NormalizedGd& gd, std::uint64_t seed) {
  Whole p = random_bank(ctx, 100), g = random_bank(ctx, seed);
  std::vector<double> norm(gd.per_expert ? five : 1), squares = norm;
  const auto slice_of = [&](const auto& t, Index i) {
    return static_cast<std::size_t>(gd.per_expert ? i / (t.size() / five) : 0);
  };
  for_each_tensor(
      [&](const Name&, const auto& t) {
        std::vector<double> of_tensor(norm.size());
        for (Index i = 0; i < t.size(); ++i) of_tensor[slice_of(t, i)] += t.data()[i] * t.data()[i];
        for (std::size_t e = 0; e < norm.size(); ++e) {
          norm[e] += std::sqrt(of_tensor[e]);
          squares[e] += of_tensor[e];
        }
      },
      g);
  for (std::size_t e = 0; e < norm.size() && !gd.sum_of_norms; ++e) norm[e] = std::sqrt(squares[e]);
  for_each_tensor(
      [&](const Name&, auto& w, const auto& t) {
        for (Index i = 0; i < t.size(); ++i) w.data()[i] -= gd.lr * t.data()[i] / norm[slice_of(t, i)];
      },
      p, g);
  return p;
}

auto mixture_of_five() { return Mixture{SoftmaxTopK{.scores = {.experts = five}, .selection = {.k = 2}}, expert}; }
bool is_expert(const Name& name) { return name.str().find("expert.") != std::string::npos; }
auto model_of(const auto& branch) { return Stack{Residual{update::HeavyBall{}, branch}, 2}; }

/// Returns the values of each tensor.
using Values = std::vector<std::vector<double>>;
Values values_of(const auto& params) {
  Values all;
  for_each_tensor([&](const Name&, const auto& t) { all.emplace_back(t.data(), t.data() + t.size()); }, params);
  return all;
}
constexpr Index items = 9, steps = 4;
/// The optimizer of a run, which uses gd for experts only.
auto of_experts(const auto& gd) { return InGroups{is_expert, gd, optim::Sgd{.lr = 0.1}}; }
template <class F>
Values run_on(Index shards, int threads, bool moves, const optim::NormalizedGd& gd, const F& optimizer_of) {
  Values found;
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(threads);
    Trainer trainer{ctx,
                    model_of(dist::ExpertParallel{mixture_of_five(), &shard}),
                    dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optimizer_of(dist::SyncNorm{gd, &shard}), &shard},
                    Seed{3},
                    Element<double>{}};
    const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
               y = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
    for (Index i = 0; i < steps; ++i) {
      const auto mine = shard.part_of(items);
      trainer.step(x.view().rows(mine.first, mine.count), y.view().rows(mine.first, mine.count));
      if (moves) {
        auto placements = dist::placements(trainer);
        for (std::size_t l = 0; l < placements.size(); ++l)
          for (Index& j : placements[l].shard_of) j = (2 * j + i + static_cast<Index>(l)) % shards;
        dist::move_experts(shard, trainer, placements);
      }
    }
    auto whole = init_params<double, Cpu>(model_of(mixture_of_five()), ctx, Seed{9});
    dist::copy_whole(shard, ctx, trainer.params, whole);
    if (shard.index() == 0) found = values_of(whole);
  });
  return found;
}

}  // namespace

TEST_CASE("SyncNorm (2): the norm is taken over all shards") {
  std::mutex mutex;
  for (const Index shards : {1, 2, 3, 7})
    for (const bool per_expert : {true, false})
      for (const bool sum_of_norms : {false, true}) {
        CAPTURE(shards);
        CAPTURE(per_expert);
        CAPTURE(sum_of_norms);
        dist::Alone world;
        dist::run(world, shards, [&](auto& shard) {
          Cpu::Context ctx(1);
          const optim::NormalizedGd options{.lr = 0.5, .per_expert = per_expert, .sum_of_norms = sum_of_norms};
          const dist::SyncNorm gd{options, &shard};
          auto whole = random_bank(ctx, 100), of_grads = random_bank(ctx, 7);
          auto p = part_of(ctx, shard.index(), shards, whole), g = part_of(ctx, shard.index(), shards, of_grads);
          auto state = gd.begin(ctx, p);
          gd.step(ctx, p, g, state);
          auto expected = stepped(ctx, options, 7);
          const auto here = part_of(ctx, shard.index(), shards, expected);
          double largest = 0;
          for_each_tensor(
              [&](const Name&, const auto& a, const auto& b) {
                for (Index i = 0; i < a.size(); ++i)
                  largest = support::larger(largest, std::abs(a.data()[i] - b.data()[i]));
              },
              p, here);
          const std::lock_guard lock(mutex);
          if (per_expert) {  // the bits of one process
            auto of_one = options.begin(ctx, whole);
            options.step(ctx, whole, of_grads, of_one);
            CHECK(values_of(p) == values_of(part_of(ctx, shard.index(), shards, whole)));
          }
          CHECK(state.step == 1);
          CHECK(largest <= 1e-15);
        });
      }
}

TEST_CASE("SyncNorm of NormalizedGd: training equals one process, any placement") {
  const auto check = [](const optim::NormalizedGd& gd, const auto& optimizer_of) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, model_of(mixture_of_five()), MeanSquaredError{}, optimizer_of(gd), Seed{3}, Element<double>{}};
    const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
               y = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
    for (Index i = 0; i < steps; ++i) trainer.step(x, y);
    const Values one = values_of(trainer.params);
    for (const Index shards : {1, 2, 4, 6}) {
      CAPTURE(shards);
      const Values all = run_on(shards, 1, false, gd, optimizer_of);
      CHECK(run_on(shards, 2, true, gd, optimizer_of) == all);
      double largest = 0;
      for (std::size_t t = 0; t < one.size(); ++t) {
        REQUIRE(all[t].size() == one[t].size());
        for (std::size_t i = 0; i < one[t].size(); ++i)
          largest = support::larger(largest, std::abs(all[t][i] - one[t][i]));
      }
      CHECK(largest <= 1e-13);
    }
  };
  for (const bool per_expert : {true, false})
    check({.lr = 0.1, .per_expert = per_expert}, [](const auto& gd) { return of_experts(gd); });
  check({.lr = 0.1, .per_expert = false}, [](const auto& gd) { return gd; });
}

TEST_CASE("SyncNorm of NormalizedGd: inconsistent slices throw before any write") {
  std::mutex mutex;
  dist::Alone world;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto whole = random_bank(ctx, 100);
    auto p = part_of(ctx, shard.index(), 3, whole), g = part_of(ctx, shard.index(), 3, whole);
    p.row.resize(five + 1, 2), g.row.resize(five + 1, 2);
    const auto before = values_of(p.first.part);
    const dist::SyncNorm gd{optim::NormalizedGd{}, &shard};
    auto state = gd.begin(ctx, p);
    std::string message;
    try {
      gd.step(ctx, p, g, state);
    } catch (const ArgumentError& e) {
      message = e.what();
    }
    const std::lock_guard lock(mutex);
    CHECK(message == "NormalizedGd.step: row: expected a first extent of 5 experts, got 6");
    CHECK(state.step == 0);
    CHECK(values_of(p.first.part) == before);
  });
}
