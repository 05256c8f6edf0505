#include "gatefold/distributed/replicate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/distributed/placement.hpp"
#include "gatefold/distributed/rebalance.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;
using dist::Copy;
using dist::Placement;
using Numbers = std::vector<Index>;

namespace {

constexpr Index dim = 6, experts = 5, layers = 2;
auto mixture_of(Index k) {
  return Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = k}},
                 Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
}
auto model_of(const auto& branch) { return Stack{Residual{update::HeavyBall{.mu = 0.5}, branch}, layers}; }

/// Puts each expert on a random shard, and copies of it on random others.
std::vector<Placement> random_placements(Index shards, std::mt19937& generator) {
  std::vector<Placement> all(layers);
  for (Placement& p : all)
    for (Index e = 0; e < experts; ++e) {
      p.shard_of.push_back(static_cast<Index>(generator()) % shards);
      for (Index j = 0; j < shards; ++j)
        if (j != p.shard_of.back() && generator() % 2 == 0) p.copies.push_back({e, j});
    }
  return all;
}
/// Puts every expert on every shard.
std::vector<Placement> everywhere(Index shards) {
  std::vector<Placement> all(layers, Placement::even(experts, shards));
  for (Placement& p : all)
    for (Index e = 0; e < experts; ++e)
      for (Index j = 0; j < shards; ++j)
        if (p.shard_of[static_cast<std::size_t>(e)] != j) p.copies.push_back({e, j});
  return all;
}

/// The parts of a served model that ExpertLoads reads.
template <class P, class S>
struct Served {
  const P& params;
  const S& saved;
};

/// Where items go: anywhere, all of them to expert 1, none to expert 3.
enum class Routing { any, hot, cold };

/// Returns the number of errors: outputs y (infer and forward) and loads that differ from those without copies, and
/// experts whose number of slots on a shard differs from the formula below.
template <class B>
int differences(Index shards, int threads, Index items, Routing routing, Index k, unsigned seed,
                const dist::ExchangeOptions& exchange = {}) {
  std::atomic<int> wrong = 0;
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    typename B::Context ctx(threads);
    const auto model = model_of(dist::ExpertParallel{mixture_of(k), &shard, {}, exchange});
    using Model = std::remove_const_t<decltype(model)>;
    auto params = init_params<float, B>(model, ctx, Seed{seed});
    for (auto& layer : params.layers)
      for (Index e = 0; e < experts; ++e) {
        if (routing == Routing::hot) layer.branch.gate.scores.weight(0, e) = e == 1 ? 50.f : 0.f;
        if (routing == Routing::cold && e == 3) layer.branch.gate.scores.weight(0, e) = -50;
      }
    auto x = uniform_tensor<float>(ctx, Seed{seed + 1}, 1, items, dim);
    for (Index n = 0; n < items; ++n) x(n, 0) = 3;
    const auto mine = shard.part_of(items);
    const auto part = x.view().rows(mine.first, mine.count);
    Saved<Model, float, B> saved;
    const auto output = [&](bool keeps) {
      Tensor<float, 2, B> y(mine.count, dim);
      Carry<Model, float, B> carry;
      model.begin(ctx, params, mine.count, carry);
      if (keeps)
        model.forward(ctx, params, part, carry, y, saved);
      else
        infer(model, ctx, params, part, carry, y);
      return std::vector<float>(y.data(), y.data() + y.size());
    };
    const auto loads_of = [&] {
      dist::ExpertLoads loads;
      loads.add(shard, Served<decltype(params), decltype(saved)>{params, saved});
      return loads.of_all(shard);
    };
    const std::vector<float> expected = output(true);
    const std::vector<Numbers> loads = loads_of();
    for (const Numbers& of_layer : loads) {
      if (routing == Routing::hot && of_layer[1] != items) ++wrong;
      if (routing == Routing::cold && of_layer[3] != 0) ++wrong;
    }
    std::mt19937 generator(seed);
    for (int round = 0; round < 4; ++round) {
      const auto placements = round == 1   ? everywhere(shards)
                              : round == 3 ? std::vector<Placement>(layers)
                                           : random_placements(shards, generator);
      const Index copies = dist::replicate_experts(shard, ctx, params, placements);
      if (copies != static_cast<Index>(placements[0].copies.size() + placements[1].copies.size())) ++wrong;
      wrong += output(false) != expected;
      wrong += output(true) != expected;
      wrong += loads_of() != loads;
      // If an expert has n slots and c copies, copy i computes slots [⌊i n/c⌋, ⌊(i+1) n/c⌋).
      for (std::size_t l = 0; l < layers; ++l) {
        const Placement& p = placements[l];
        std::size_t here = 0;
        for (Index e = 0; e < experts && round < 3; ++e) {
          Numbers on{p.shard_of[static_cast<std::size_t>(e)]};
          for (const Copy& c : p.copies)
            if (c.expert == e) on.push_back(c.shard);
          std::sort(on.begin(), on.end());
          for (std::size_t i = 0; i < on.size(); ++i)
            if (on[i] == shard.index()) {
              const Index n = loads[l][static_cast<std::size_t>(e)], c = static_cast<Index>(on.size()),
                          at = static_cast<Index>(i);
              wrong += saved.layers[l].calls[0].slots.counts()[here++] != (at + 1) * n / c - at * n / c;
            }
        }
      }
    }
  });
  return wrong;
}

/// Returns the message of what a program on two shards throws.
std::string message_of(const auto& program) {
  dist::Alone world;
  try {
    dist::run(world, 2, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto model = model_of(dist::ExpertParallel{mixture_of(2), &shard});
      auto params = init_params<float, Cpu>(model, ctx, Seed{1});
      program(shard, ctx, model, params);
    });
  } catch (const ArgumentError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("replicate: copies change no bits and share slots evenly") {
  unsigned seed = 1;
  for (const Index shards : {1, 2, 3, 4})
    for (const Index items : {0, 1, 3, 40})  // with 1 and 3 some shards have no item, and copies outnumber slots
      for (const Routing routing : {Routing::any, Routing::hot, Routing::cold}) {
        CAPTURE(shards);
        CAPTURE(items);
        CAPTURE(static_cast<int>(routing));
        CHECK(differences<Cpu>(shards, 1 + static_cast<int>(seed % 2), items, routing, 1 + seed % 2, seed) == 0);
        CHECK(differences<CpuBf16>(shards, 2 - static_cast<int>(seed % 2), items, routing, 2 - seed % 2, seed) == 0);
        ++seed;
      }
  for (const bool bfloat16 : {false, true})  // rows cross in chunks, rounded or not
    CHECK(differences<Cpu>(3, 1, 40, Routing::hot, 2, 70, {.bfloat16 = bfloat16, .chunks = 2}) == 0);
}

TEST_CASE("replicate: mixed, frozen and random experts keep their output bits") {
  dist::Alone world;
  std::atomic<int> wrong = 0;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    const auto check = [&](const auto& mixture, const auto& extra, const Placement& placement) {
      const dist::ExpertParallel branch{mixture, &shard};
      auto params = init_params<float, Cpu>(branch, ctx, Seed{1});
      const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 8 * (shard.index() % 2), dim);  // two shards have no items
      Tensor<float, 2, Cpu> u(x.extent(0), dim), v(x.extent(0), dim);
      infer(branch, ctx, params, x, u, extra);
      dist::replicate_experts(shard, ctx, params, {placement});
      infer(branch, ctx, params, x, v, extra);
      wrong += !std::equal(u.data(), u.data() + u.size(), v.data());
      fill(ctx, v.view(), 0);
      const auto frozen = freeze(ctx, std::move(params));
      const auto scope = ctx.use(frozen.packed);
      infer(branch, ctx, frozen.params, x, v, extra);
      wrong += !std::equal(u.data(), u.data() + u.size(), v.data());
    };
    const Mixture mixed{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
                        Experts<Mlp<Gelu>, GatedMlp<Silu>>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9},
                                                                     GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 5}},
                                                           .counts = {4, 2}}};
    check(mixed, Extra<std::remove_const_t<decltype(mixed)>, float, Cpu>{},
          {{0, 0, 2, 1, 1, 2}, {{5, 0}, {0, 2}, {4, 0}, {4, 2}, {3, 0}}});
    const Noise noise{Random{Seed{3}, 1}};
    const HiddenDropout expert{0.5, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
    const Placement placement{{0, 1, 0, 1}, {{0, 1}, {0, 2}, {3, 0}, {1, 2}}};
    const Mixture sparse{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, expert};
    check(sparse, Extra<std::remove_const_t<decltype(sparse)>, float, Cpu>{.noise = noise}, placement);
    const Mixture dense{SoftMoe{.count = 4, .slots = 2}, expert};
    check(dense, Extra<std::remove_const_t<decltype(dense)>, float, Cpu>{.noise = noise, .branch = {.length = 2}},
          placement);
  });
  CHECK(wrong == 0);
}

TEST_CASE("replicate: hot experts get copies, so loads are more even") {
  constexpr Index items = 60, shards = 4;
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(1);
    const auto model = model_of(dist::ExpertParallel{mixture_of(1), &shard});
    Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optim::Sgd{.lr = 0.01}, &shard}, Seed{3}};
    for (auto& layer : trainer.params.layers)
      for (Index e = 0; e < experts; ++e) layer.branch.gate.scores.weight(0, e) = e == 2 ? 5.f : 0.f;
    auto batch = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
    for (Index n = 0; n < items - 6; ++n) batch(n, 0) = 2;  // most items go to expert 2
    const auto mine = shard.part_of(items);
    const auto x = batch.view().rows(mine.first, mine.count);
    trainer.step(x, x);
    dist::ExpertLoads counted;
    counted.add(shard, trainer);
    const auto loads = counted.of_all(shard);

    using Model = std::remove_const_t<decltype(model)>;
    Carry<Model, float, Cpu> carry;
    Tensor<float, 2, Cpu> before(mine.count, dim), y(mine.count, dim);
    model.begin(ctx, trainer.params, mine.count, carry);
    infer(model, ctx, trainer.params, x, carry, before);
    model.begin(ctx, trainer.params, mine.count, carry);
    // [snippet replicate]
    auto params = zeros_like(ctx, trainer.params);
    copy_pack(ctx, trainer.params, params);
    const auto found = dist::replicate(shard, ctx, params, loads, dist::HottestFirst{.extra = 1});
    infer(model, ctx, params, x, carry, y);
    // [/snippet]
    const double step = trainer.step(x, x);  // the run continues with its own parameters
    const auto placements = dist::placements(Served<decltype(params), int>{params, 0});

    const std::lock_guard lock(mutex);
    CHECK(std::equal(before.data(), before.data() + before.size(), y.data()));
    CHECK(step > 0);
    CHECK(found.copies == static_cast<Index>(placements[0].copies.size() + placements[1].copies.size()));
    for (std::size_t l = 0; l < layers; ++l) {
      const auto imbalance = [&](const Placement& p) {
        std::vector<double> of(shards);
        double total = 0;
        for (std::size_t e = 0; e < experts; ++e) {
          Numbers on{p.shard_of[e]};
          for (const Copy& c : p.copies)
            if (c.expert == static_cast<Index>(e)) on.push_back(c.shard);
          std::sort(on.begin(), on.end());
          const Index n = loads[l][e], c = static_cast<Index>(on.size());
          for (Index i = 0; i < c; ++i)
            of[static_cast<std::size_t>(on[static_cast<std::size_t>(i)])] +=
                static_cast<double>((i + 1) * n / c - i * n / c);
          total += static_cast<double>(n);
        }
        return *std::max_element(of.begin(), of.end()) / (total / shards);
      };
      CHECK(found.before[l] == doctest::Approx(imbalance(Placement::even(experts, shards))).epsilon(1e-12));
      CHECK(found.after[l] == doctest::Approx(imbalance(placements[l])).epsilon(1e-12));
      CHECK(found.before[l] > 3);
      CHECK(found.after[l] < 1.5);
    }
  });
}

TEST_CASE("replicate: training or saving replicated experts throws on all shards") {
  const std::vector<Placement> copied(layers, Placement{{0, 0, 1, 1, 1}, {{4, 0}, {0, 1}}});
  const std::string none =
      "expected 0 copies, because experts with copies (dist::replicate) can only be used for inference, got 2";
  CHECK(message_of([&](auto& shard, auto& ctx, auto& model, auto& params) {
          dist::replicate_experts(shard, ctx, params, copied);
          const auto& branch = model.layer.branch;
          const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 4, dim);
          Tensor<float, 2, Cpu> u(4, dim), dx = constant_tensor<float>(ctx, 0, 4, dim);
          Saved<std::remove_cvref_t<decltype(branch)>, float, Cpu> saved;
          auto grads = zeros_like(ctx, params);
          branch.forward(ctx, params.layers[0].branch, x, u, saved);
          backward(branch, ctx, params.layers[0].branch, x, saved, x, dx, grads.layers[0].branch);
        }) == "ExpertParallel.backward: placement.copies: " + none);
  CHECK(message_of([&](auto& shard, auto& ctx, auto&, auto& params) {
          dist::replicate_experts(shard, ctx, params, copied);
          auto whole = init_params<float, Cpu>(model_of(mixture_of(2)), ctx, Seed{1});
          dist::copy_whole(shard, ctx, params, whole);
        }) == "copy_whole: placement.copies: " + none);
  CHECK(message_of([&](auto& shard, auto& ctx, auto&, auto&) {
          const dist::ExpertParallel branch{mixture_of(2), &shard, copied[0]};
          init_params<float, Cpu>(branch, ctx, Seed{1});
        }) == "ExpertParallel: placement.copies: " + none);
  const auto moved = [&](bool begins_with_copies) {
    return message_of([&](auto& shard, auto& ctx, auto& model, auto&) {
      Trainer trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{optim::Sgd{.lr = 0.01}, &shard}, Seed{3}};
      if (begins_with_copies) dist::replicate_experts(shard, ctx, trainer.params, copied);
      dist::move_experts(shard, trainer, begins_with_copies ? std::vector<Placement>(layers) : copied);
    });
  };
  CHECK(moved(true) == "move_experts: placement.copies: " + none);
  CHECK(moved(false) == "move_experts: placement.copies: " + none);
  CHECK(message_of([&](auto& shard, auto& ctx, auto&, auto& params) {
          auto trained = zeros_like(ctx, params);
          dist::replicate_experts(shard, ctx, params, copied);
          copy_pack(ctx, trained, params);
        }) ==
        "Sharded: packs: expected packs with their experts on the same shards, got a pack with copies of experts "
        "(dist::replicate), which can only be used for inference: remove the copies first");
}

TEST_CASE("replicate: invalid arguments throw on all shards, change no experts") {
  const auto refused = [](const auto& table_of) {
    return message_of([&](auto& shard, auto& ctx, auto&, auto& params) {
      const auto before = dist::deals_of(params);
      try {
        dist::replicate_experts(shard, ctx, params, table_of(shard));
      } catch (const ArgumentError&) {
        if (dist::deals_of(params) == before) throw;
      }
    });
  };
  const Placement even{{0, 0, 1, 1, 1}};
  const auto second = [&](const Placement& p) {
    return refused([&](auto&) { return std::vector<Placement>{even, p}; });
  };
  CHECK(second({{0, 0, 1, 1, 1}, {{1, 2}}}) ==
        "replicate_experts: placement.copies[0].shard: expected a shard in [0, 2), got 2");
  CHECK(second({{0, 0, 1, 1, 1}, {{1, 1}, {1, 1}}}) ==
        "replicate_experts: placement.copies[1].shard: expected a shard that does not hold expert 1 yet, got 1");
  CHECK(second({{0, 0, 1, 1, 1}, {{5, 1}}}) ==
        "replicate_experts: placement.copies[0].expert: expected an expert in [0, 5), got 5");
  CHECK(second({{0, 0, 2, 1, 1}}) == "replicate_experts: placement[2]: expected a shard in [0, 2), got 2");
  CHECK(refused([&](auto&) { return std::vector<Placement>{even}; }) ==
        "replicate_experts: placements: expected one for each of 2 ExpertParallel, got 1");
  CHECK(refused([&](auto& shard) {
          Placement other = even;
          if (shard.index() == 1) other.copies.push_back({0, 1});
          return std::vector<Placement>{even, other};
        }) ==
        "replicate_experts: placements.1: expected the same value on all shards, got a different one on shard 1 than "
        "on shard 0");
  CHECK(message_of([&](auto& shard, auto& ctx, auto&, auto& params) {
          dist::replicate(shard, ctx, params, std::vector<Numbers>{{1, 2, 3, 4, 5}});
        }) == "replicate: loads: expected loads of 2 ExpertParallel, got 1");
  CHECK(message_of([](auto& shard, auto& ctx, auto&, auto& params) {
          dist::replicate(shard, ctx, params, {{1, 2, 3, 4, 5}, {1, 2, 3, 4, shard.index()}});
        }) ==
        "replicate: loads.1: expected the same value on all shards, got a different one on shard 1 than on shard 0");
  CHECK(message_of([](auto& shard, auto& ctx, auto&, auto& params) {
          dist::replicate(shard, ctx, params, {{1, 2, 3, 4, 5}, {1, -2, 3, 4, 5}});
        }) == "replicate: loads: expected at least 0 slots, got -2");
}

using dist::HottestFirst;

TEST_CASE("HottestFirst (1): copies hot experts, then places the longest first") {
  // There are six places for four experts. The two spare places get copies of the experts with loads 12 and 4, so that
  // both shards have these experts. The shards' loads grow to 6 | 6, 6 + 2 | 6 + 2, 8 + 1 | 8, that is 9 | 8.
  const Placement found = HottestFirst{.extra = 1}.place({12, 4, 1, 0}, 2, {{0, 0, 1, 1}});
  CHECK(found.shards_of(0) == Numbers{0, 1});
  CHECK(found.shards_of(1) == Numbers{0, 1});
  CHECK(found.shards_of(2).size() == 1);
  CHECK(found.shards_of(3).size() == 1);
  CHECK(dist::loads_of_shards({12, 4, 1, 0}, found, 2) == Numbers{9, 8});
  // There are sixteen places for twelve experts. The four spare places get copies of the experts with loads 183, 165,
  // 132 and 104. With a fifth spare place, the expert with load 183 would get a second copy.
  const Numbers loads{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const Placement of_twelve = HottestFirst{.extra = 1}.place(loads, 4, Placement::even(12, 4));
  CHECK(of_twelve.copies.size() == 4);
  for (const Index twice : {10, 5, 1, 4}) CHECK(of_twelve.shards_of(twice).size() == 2);
}

TEST_CASE("HottestFirst: respects room and holds each expert once per shard") {
  std::mt19937 generator(3);
  Index left_out = 0;
  for (int i = 0; i < 400; ++i) {
    const Index shards = 1 + i % 5, experts = 1 + static_cast<Index>(generator() % 9),
                extra = static_cast<Index>(generator() % 4);
    CAPTURE(shards);
    CAPTURE(experts);
    CAPTURE(extra);
    Numbers loads(static_cast<std::size_t>(experts));
    for (Index& l : loads) l = static_cast<Index>(generator() % (i % 3 == 0 ? 3 : i % 3 == 1 ? 100 : 1000000));
    if (i % 4 == 0) loads[0] = 100000;
    const Placement now = Placement::even(experts, shards), found = HottestFirst{extra}.place(loads, shards, now);
    CHECK(found.filled("test", experts, shards) == found);  // no shard has an expert twice
    for (Index j = 0; j < shards; ++j) CHECK(found.count(j) <= (experts + shards - 1) / shards + extra);
    CHECK(HottestFirst{extra}.place(loads, shards, now) == found);
    for (Index e = 0; e < experts; ++e) {
      if (found.on(now.shard_of[static_cast<std::size_t>(e)], e))
        CHECK(found.shard_of[static_cast<std::size_t>(e)] == now.shard_of[static_cast<std::size_t>(e)]);
      if (loads[static_cast<std::size_t>(e)] == 0) CHECK(found.shards_of(e).size() == 1);
    }
    const Numbers of = dist::loads_of_shards(loads, found, shards);
    const Index total = std::accumulate(loads.begin(), loads.end(), Index(0));
    CHECK(std::accumulate(of.begin(), of.end(), Index(0)) == total);
    // A loop computes how many copies each expert should have. Few of them find no shard with room.
    Numbers places(loads.size(), 1);
    for (Index free = shards * ((experts + shards - 1) / shards + extra) - experts; free > 0; --free) {
      double most = 0;
      std::size_t hottest = 0;
      for (std::size_t e = 0; e < loads.size(); ++e) {
        const double each = static_cast<double>(loads[e]) / static_cast<double>(places[e]);
        if (places[e] < shards && each > most) most = each, hottest = e;
      }
      if (most > 0) ++places[hottest];
    }
    for (std::size_t e = 0; e < loads.size(); ++e) {
      const auto there = static_cast<Index>(found.shards_of(static_cast<Index>(e)).size());
      CHECK(there <= places[e]);
      left_out += places[e] - there;
    }
  }
  CHECK(left_out <= 4);
}

TEST_CASE("HottestFirst: copies divide a dominant expert, moving cannot") {
  const Numbers loads{1000, 10, 10, 10, 10, 10, 10, 10};
  const Placement now = Placement::even(8, 4);
  const auto imbalance = [&](const Placement& p) { return dist::imbalance(loads, p, 4); };
  CHECK(imbalance(dist::LongestFirst{.gain = 0}.place(loads, 4, now)) > 3.7);  // 4 is the largest possible
  CHECK(imbalance(HottestFirst{.extra = 1}.place(loads, 4, now)) < 1.03);
}

TEST_CASE("HottestFirst: errors name the wrong argument") {
  const Placement now = Placement::even(3, 2);
  CHECK_THROWS_WITH_AS((HottestFirst{.extra = -1}.place({1, 2, 3}, 2, now)),
                       "HottestFirst: extra: expected at least 0, got -1", ArgumentError);
  CHECK_THROWS_WITH_AS((HottestFirst{}.place({1, 2}, 2, now)),
                       "HottestFirst: loads: expected one load for each of 3 experts, got 2", ArgumentError);
}
