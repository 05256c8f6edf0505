#include "gatefold/distributed/global_gate.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

using Scores = LinearScores;

namespace {

/// A user's gate that passes the sequence length on to one of its parts.
struct ComposedSoftMoe {
  SoftMoe gate;
  template <class T, class B>
  using Plan = SoftMoe::Plan<T, B>;
  template <class T, class B>
  using Params = SoftMoe::Params<T, B>;
  template <class T, class B>
  struct Extra {
    Sequence<T, B> selection;
  };
  Index experts() const { return gate.count; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return gate.init<T, B>(ctx, seed);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Plan<T, B>& plan, Nothing<T, B>& kept,
               const Extra<T, B>& extra) const {
    gate.forward(ctx, p, x, plan, kept, extra.selection);
  }
};

/// Compares plan and auxiliary losses of all shards with those of one process.
/// @param sequence  the number of items that must lie on the same shard
template <class G>
void check_plan(const G& gate, const Extra<G, double, Cpu>& extra = {}, Index sequence = 1) {
  const Index items = 29 * sequence;
  Cpu::Context one(1);
  const auto params = init_params<double, Cpu>(gate, one, Seed{1});
  const auto x = uniform_tensor<double>(one, Seed{2}, 1, items, gate.scores.model_dim);
  Plan<G, double, Cpu> expected;
  Saved<G, double, Cpu> kept;
  gate.forward(one, params, x, expected, kept, extra);
  const auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
  };
  for (Index shards : {1, 2, 5, 40}) {  // of forty shards, some have no items
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto sequences = shard.part_of(items / sequence);
      const dist::Range mine{sequences.first * sequence, sequences.count * sequence};
      typename dist::GlobalGate<G, double, Cpu>::Saved saved;
      dist::GlobalGate<G, double, Cpu>::forward(gate, shard, ctx, params, x.view().rows(mine.first, mine.count), saved,
                                                extra);
      if (!same(saved.plan.offsets, expected.offsets) || !same(saved.plan.expert, expected.expert) ||
          !same(saved.plan.weight, expected.weight) || !same(saved.gate.auxiliary, kept.auxiliary))
        ++wrong;
      // A shard's own picks are the picks of its items, in the order of the whole plan.
      std::size_t next = 0;
      for (Index p = 0; p < expected.item.size(); ++p) {
        if (expected.item(p) < mine.first || expected.item(p) >= mine.first + mine.count) continue;
        const Index i = static_cast<Index>(next++);
        if (saved.own().item(i) != expected.item(p) - mine.first || saved.own().expert(i) != expected.expert(p) ||
            saved.own().weight(i) != expected.weight(p))
          ++wrong;
      }
      if (static_cast<Index>(next) != saved.own().item.size() || saved.own().items() != mine.count) ++wrong;
    });
    CAPTURE(shards);
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("GlobalGate: replays the recorded experts of all shards") {
  using G = ComposedGate<Scores, Independent, ReplayTopK, ZLoss>;
  const G gate{.scores = {.model_dim = 6, .experts = 5}, .selection = {.k = 2}};
  constexpr Index items = 9;
  std::vector<Index> recorded;
  for (Index n = 0; n < items; ++n)
    recorded.insert(recorded.end(), {n % 5, (n * n + n + 3) % 5 == n % 5 ? (n + 1) % 5 : (n * n + n + 3) % 5});
  const auto of = [&](const dist::Range& part) {
    Extra<G, double, Cpu> extra;
    extra.selection.recorded = View<const Index, 2, Cpu>(recorded.data() + 2 * part.first, 1, 2 * part.count);
    return extra;
  };
  Cpu::Context one(1);
  const auto params = init_params<double, Cpu>(gate, one, Seed{1});
  const auto x = uniform_tensor<double>(one, Seed{2}, 1, items, 6);
  for (const Index shards : {1, 2, 4, 12}) {  // of twelve shards, some have no items
    std::atomic<int> wrong = 0;
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto mine = shard.part_of(items);
      typename dist::GlobalGate<G, double, Cpu>::Saved saved;
      dist::GlobalGate<G, double, Cpu>::forward(gate, shard, ctx, params, x.view().rows(mine.first, mine.count), saved,
                                                of(mine));
      if (!std::equal(recorded.begin(), recorded.end(), saved.plan.expert.data())) ++wrong;
      if (!std::equal(saved.own().expert.data(), saved.own().expert.data() + 2 * mine.count,
                      recorded.begin() + 2 * mine.first))
        ++wrong;
    });
    CAPTURE(shards);
    CHECK(wrong == 0);
  }
}

TEST_CASE("GlobalGate: plan and losses equal those of one process") {
  const LinearScores scores{.model_dim = 6, .experts = 5};
  check_plan(WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{.scores = scores, .selection = {.k = 2}});
  check_plan(ComposedGate<Scores, Independent, ExpertChoice, Importance>{.scores = scores});
  check_plan(ComposedGate<Scores, Independent, Capacity<TopK>, Balance>{
      .scores = scores, .selection = {.selection = {.k = 2}, .factor = 0.5, .multiple_of = 1}});
  check_plan(ComposedGate<Scores, TokenSimilarity, TopK, Balance, ZLoss>{.scores = scores}, {.mixing = {.length = 4}},
             4);
  check_plan(ComposedGate<Scores, TokenSimilarity, Capacity<TopK>>{.scores = scores}, {.mixing = {.length = 3}}, 3);
  check_plan(ComposedGate<Scores, TokenSimilarity, SigmoidBias>{.scores = scores});  // one sequence spans all shards
  check_plan(ComposedGate<Scores, Independent, NoisyTopK<>, Load>{.scores = scores, .selection = {.model_dim = 6}},
             {.selection = {Random{Seed{3}, 1}}});
  check_plan(ComposedGate<Scores, Independent, NoisyTop1<>>{.scores = scores}, {.selection = {Random{Seed{3}, 1}}});
}

TEST_CASE("GlobalGate: gates of whole sequences need a length on shards") {
  dist::Alone world;
  const auto on = [&]<class G>(Index shards, const G& gate, const Extra<G, float, Cpu>& extra) {
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
      const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 3, 4);
      typename dist::GlobalGate<G, float, Cpu>::Saved saved;
      dist::GlobalGate<G, float, Cpu>::forward(gate, shard, ctx, params, x, saved, extra);
    });
  };
  const auto refused = [&](const auto& gate, const char* name) {
    on(1, gate, {});
    const std::string sentence = std::string("ExpertParallel.forward: ") + name +
                                 ": expected at least 1, because a sequence must not be split across shards, got 0";
    for (const Index shards : {2, 5}) CHECK_THROWS_WITH_AS(on(shards, gate, {}), sentence.c_str(), ArgumentError);
  };
  const SimilarityAware<SoftmaxTopK> similar{.scores = {.model_dim = 4, .experts = 3}};
  refused(similar, "extra.mixing.length");
  on(2, similar, {.mixing = {.length = 3}});
  const SoftMoe soft{.model_dim = 4, .count = 3};
  refused(soft, "extra.length");
  on(2, soft, {.length = 3});
  refused(ComposedSoftMoe{{.model_dim = 4, .count = 3}}, "extra.selection.length");
  // These gates treat the whole batch as one sequence, so items of all shards interact.
  on(2, ComposedGate<Scores, Independent, ExpertChoice>{.scores = {.model_dim = 4, .experts = 3}}, {});
  on(2, ComposedGate<Scores, TokenSimilarity, SigmoidBias>{.scores = {.model_dim = 4, .experts = 3}}, {});
}

TEST_CASE("GlobalGate: throws if only some shards have a mask") {
  const SoftmaxTopK gate{.scores = {.model_dim = 4, .experts = 3}};
  using Gate = dist::GlobalGate<SoftmaxTopK, float, Cpu>;
  dist::Alone world;
  CHECK_THROWS_WITH_AS(dist::run(world, 2,
                                 [&](auto& shard) {
                                   Cpu::Context ctx(1);
                                   const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
                                   const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, 3, 4);
                                   const std::vector<float> mask(3, 1);
                                   Gate::Saved saved;
                                   Extra<SoftmaxTopK, float, Cpu> extra{};
                                   if (shard.index() == 0) extra.valid = mask;
                                   Gate::forward(gate, shard, ctx, params, x, saved, extra);
                                 }),
                       "ExpertParallel.forward: extra.valid: expected a mask on all shards that have items, or on no "
                       "shard, got a mask on 1 of 2",
                       ArgumentError);
}

TEST_CASE("GlobalGate: different noise, k, length or tau throws everywhere") {
  dist::Alone world;
  std::atomic<int> passed = 0;
  const auto run = [&](const auto& gate, const auto& change) {
    using G = std::remove_cvref_t<decltype(gate)>;
    using Gate = dist::GlobalGate<G, float, Cpu>;
    dist::run(world, 3, [&](auto& shard) {
      Cpu::Context ctx(1);
      const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
      const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, shard.index() == 2 ? 0 : 4, 4);  // the last shard has none
      typename Gate::Saved saved;
      Extra<G, float, Cpu> extra{};
      change(extra, shard.index());
      Gate::forward(gate, shard, ctx, params, x, saved, extra);
      ++passed;
    });
  };
  const auto refused = [&](const auto& gate, const auto& change) {
    for (const Index other : {1, 2}) {
      passed = 0;
      CHECK_THROWS_WITH_AS(
          run(gate, [&](auto& extra, Index shard) { change(extra, shard == other); }),
          ("ExpertParallel.forward: extra: expected the same noise, k, length and stage on all shards, got "
           "other values on shard " +
           std::to_string(other) + " than on shard 0")
              .c_str(),
          ArgumentError);
      CHECK(passed == 0);
    }
    passed = 0;
    run(gate, [&](auto& extra, Index) { change(extra, true); });
    CHECK(passed == 3);
  };
  const LinearScores scores{.model_dim = 4, .experts = 3};
  const auto noise = [](bool other) { return Random{Seed{other ? 5u : 3u}, 1}; };
  const ComposedGate<Scores, Independent, NoisyTop1<>> top_1{.scores = scores};
  refused(top_1, [&](auto& extra, bool other) { extra.selection = {noise(other)}; });
  refused(top_1, [&](auto& extra, bool other) {
    if (!other) extra.selection = {noise(false)};
  });
  refused(top_1, [&](auto& extra, bool other) { extra.selection = {Random{Seed{3}, other ? 2u : 1u}}; });
  refused(ComposedGate<Jitter<Scores>, Independent, TopK>{.scores = {scores}},
          [&](auto& extra, bool other) { extra.scores = {noise(other)}; });
  refused(ComposedGate<Scores, Independent, ScheduledTopK>{.scores = scores},
          [](auto& extra, bool other) { extra.selection.k = other ? 1 : 2; });
  refused(ComposedGate<Scores, TokenSimilarity, TopK>{.scores = scores},
          [](auto& extra, bool other) { extra.mixing.length = other ? 4 : 2; });
  refused(ComposedGate<Scores, TokenSimilarity, TopK>{.scores = scores},
          [](auto& extra, bool other) { extra.mixing = {.length = 4, .tau = other ? 0.5 : 0.7}; });
}

TEST_CASE("take_picks: a range of items keeps its picks and order") {
  Cpu::Context ctx(1);
  SparsePlan<double, Cpu> all, own;
  all.resize(4, 3, 7);
  // Picks of items 3, 1, 2, 1, 0, 2, and a place that no pick uses. The first pick of item 2 was dropped.
  const std::vector<Index> item{3, 1, 2, 1, 0, 2, 1}, expert{0, 2, ~Index(1), 0, 1, 2, no_pick};
  for (Index p = 0; p < 7; ++p) {
    const auto i = static_cast<std::size_t>(p);
    all.item(p) = item[i];
    all.expert(p) = expert[i];
    all.weight(p) = 0.5 + static_cast<double>(p);
  }
  all.build(ctx);
  Tensor<Index, 1, Cpu> picks;
  dist::take_picks(ctx, all, 1, 2, picks, own);  // items 1 and 2
  const auto values = [](const auto& t) { return std::vector(t.data(), t.data() + t.size()); };
  CHECK(values(picks) == std::vector<Index>{1, 2, 3, 5});
  CHECK(values(own.item) == std::vector<Index>{0, 1, 0, 1});
  CHECK(values(own.expert) == std::vector<Index>{2, ~Index(1), 0, 2});
  CHECK(values(own.weight) == std::vector<double>{1.5, 2.5, 3.5, 5.5});
  CHECK(own.items() == 2);
  CHECK(values(own.offsets) == std::vector<Index>{0, 1, 1, 3});

  Tensor<double, 1, Cpu> d(4), dall = constant_tensor<double>(ctx, 0, 7);
  for (Index i = 0; i < 4; ++i) d(i) = 1 + static_cast<double>(i);
  dist::give_picks<double, Cpu>(ctx, picks, d, dall);
  CHECK(values(dall) == std::vector<double>{0, 1, 2, 3, 0, 4, 0});
}
