#include "gatefold/distributed/sharded.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/distributed/shards.hpp"
#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

/// Checks that the parts of all shards, joined in order, equal every tensor of the whole.
template <class E>
void check_parts(const E& expert, Index experts, Index shards) {
  Cpu::Context ctx(1);
  const auto all = expert.template init<double, Cpu>(ctx, experts, Seed{1});
  const auto placement = dist::Placement::even(experts, shards);
  std::vector<std::vector<double>> joined;
  for (Index j = 0; j < shards; ++j) {
    dist::Sharded<Params<E, double, Cpu>> part;
    dist::take_experts(ctx, expert, placement, j, shards, part, all);
    // The part has the shapes that its policy expects.
    dist::some_experts(expert, placement, j, {0, experts}).validate(part.part, placement.count(j));
    std::size_t i = 0;
    for_each_tensor(
        [&](const Name&, const auto& t) {
          if (joined.size() <= i) joined.emplace_back();
          joined[i].insert(joined[i].end(), t.data(), t.data() + t.size());
          ++i;
        },
        part);
  }
  std::size_t i = 0;
  for_each_tensor(
      [&](const Name& at, const auto& t) {
        CHECK_MESSAGE(joined[i++] == std::vector<double>(t.data(), t.data() + t.size()), at.str());
      },
      all);
}

struct Names {
  std::vector<std::string> seen{};
  void operator()(const Name& at, const auto&) { seen.push_back(at.str()); }
};
struct NamesOfShards : Names {
  using Names::operator();
  void sharded(const Name& at, const auto&) { seen.push_back("part of " + at.str()); }
};
struct Pack {
  Tensor<double, 1, Cpu> whole;
  dist::Sharded<Linear::Params<double, Cpu>> expert;
  GATEFOLD_PACK(whole, expert)
};

}  // namespace

TEST_CASE("take_experts: shards together hold all experts in order") {
  for (Index shards : {1, 2, 3, 5, 8}) {
    check_parts(Mlp<Gelu>{.model_dim = 3, .hidden_dim = 5}, 5, shards);
    check_parts(Linear{.model_dim = 3, .bias = false}, 5, shards);
    check_parts(AttentionExpert{.model_dim = 2, .length = 3, .outputs = 4, .initial = Initial::normal(1)}, 4, shards);
    check_parts(Experts<Mlp<Gelu>, Linear, Mlp<Gelu>>{.kinds = {Mlp<Gelu>{.model_dim = 3, .hidden_dim = 2},
                                                                Linear{.model_dim = 3},
                                                                Mlp<Gelu>{.model_dim = 3, .hidden_dim = 7}},
                                                      .counts = {2, 3, 1}},
                6, shards);
  }
}

TEST_CASE("take_experts: throws if a first extent is not E") {
  Cpu::Context ctx(1);
  const auto all = Linear{.model_dim = 3}.init<double, Cpu>(ctx, 4, Seed{1});
  dist::Sharded<Linear::Params<double, Cpu>> part;
  CHECK_THROWS_WITH_AS(dist::take_experts(ctx, Linear{}, dist::Placement::even(3, 2), 0, 2, part, all),
                       "ExpertParallel: weight: expected a first extent of 3 (the number of experts), got 4",
                       ArgumentError);
  // The last tensor of the second kind has a wrong extent.
  using Kinds = Experts<Linear, Linear>;
  const Kinds kinds{.kinds = {Linear{.model_dim = 3}, Linear{.model_dim = 3}}, .counts = {2, 1}};
  auto several = kinds.init<double, Cpu>(ctx, 3, Seed{1});
  std::get<1>(several.kinds).bias.resize(2, 3);
  dist::Sharded<Params<Kinds, double, Cpu>> of_kinds;
  CHECK_THROWS_WITH_AS(dist::take_experts(ctx, kinds, dist::Placement::even(3, 2), 0, 2, of_kinds, several),
                       "ExpertParallel: kinds.1.bias: expected a first extent of 1 (the number of experts), got 2",
                       ArgumentError);
}

TEST_CASE("take_experts: mixed kinds in any placement keep their rows") {
  Cpu::Context ctx(1);
  const Experts<Linear, Experts<Linear, Linear>> experts{
      .kinds = {Linear{.model_dim = 2}, {.kinds = {Linear{.model_dim = 2}, Linear{.model_dim = 2}}, .counts = {1, 2}}},
      .counts = {2, 3}};
  auto all = experts.init<double, Cpu>(ctx, 5, Seed{1});
  Index expert = 0;  // each expert's bias is its number
  for_each_tensor(
      [&](const Name& at, auto& t) {
        if (at.part != "bias") return;
        const Index width = dist::rows::width(t);
        for (Index e = 0; e < t.extent(0); ++e, ++expert) std::fill_n(t.data() + e * width, width, double(expert));
      },
      all);
  REQUIRE(expert == 5);
  const dist::Placement placement{{2, 0, 0, 2, 0}};
  const std::vector<std::vector<Index>> expected{{1, 2, 4}, {}, {0, 3}};
  for (Index j = 0; j < 3; ++j) {
    dist::Sharded<Params<std::remove_const_t<decltype(experts)>, double, Cpu>> mine;
    dist::take_experts(ctx, experts, placement, j, 3, mine, all);
    dist::some_experts(experts, placement, j, {0, 5}).validate(mine.part, placement.count(j));
    std::vector<Index> found, dealt;
    const auto look = [&](const Name& at, const auto& t, const dist::DealtRows& rows) {
      if (at.part != "bias") return;
      for (Index e = 0; e < t.extent(0); ++e) found.push_back(static_cast<Index>(t.data()[e * dist::rows::width(t)]));
      for (const Index e : rows.of(j)) dealt.push_back(rows.experts.first + e);
    };
    dist::sharded::Visitor<false, decltype(look)>{look}.sharded(Name{}, mine);
    CHECK(found == expected[static_cast<std::size_t>(j)]);
    CHECK(dealt == found);
    CHECK(zeros_like(ctx, mine).deal == mine.deal);  // packs made from it have the same experts
  }
}

TEST_CASE("Sharded: keeps tensor names; visitors can detect sharded packs") {
  const Pack pack;
  Names names;
  for_each_tensor(names, pack);
  CHECK(names.seen == std::vector<std::string>{"whole", "expert.weight", "expert.bias"});
  NamesOfShards apart;
  for_each_tensor(apart, pack);
  CHECK(apart.seen == std::vector<std::string>{"whole", "part of expert"});
}

namespace {

/// A visitor whose `sharded` names its parameter type and returns a value.
struct TypedNames {
  std::vector<std::string> seen{};
  void operator()(const Name& at, const auto&) { seen.push_back(at.str()); }
  template <class P>
  std::size_t sharded(const Name& at, const dist::Sharded<P>&) {
    seen.push_back("part of " + at.str());
    return seen.size();
  }
};

}  // namespace

TEST_CASE("Sharded: visitors of learned tensors can detect sharded packs") {
  const Pack pack;
  TypedNames all, learned;
  for_each_tensor(all, pack);
  for_each_learned(learned, pack);
  CHECK(all.seen == std::vector<std::string>{"whole", "part of expert"});
  CHECK(learned.seen == all.seen);
}

namespace {

void on_shards(Index shards, const auto& program) {
  dist::Alone world;
  dist::run(world, shards, program);
}

}  // namespace

TEST_CASE("HeldRows: every shard gets the row counts of all shards") {
  on_shards(3, [](auto& shard) {
    const Index j = shard.index();
    const dist::HeldRows held(shard, {j, 10 + j * j});
    CHECK(held.of(0) == std::vector<Index>{0, 1, 2});
    CHECK(held.of(1) == std::vector<Index>{10, 11, 14});
    CHECK(held.count(1) == 35);
    CHECK(held.before(1, j) == std::vector<Index>{0, 10, 21}[static_cast<std::size_t>(j)]);
  });
  on_shards(2, [](auto& shard) { dist::HeldRows(shard, {}); });
}

TEST_CASE("HeldRows: a wrong number of rows throws on all shards") {
  const dist::Deal deal{dist::Placement{{0, 1, 1, 0, 0}}, 2, {}};
  const auto check = [&](Index first, Index second, const dist::DealtRows& rows) {
    try {
      on_shards(2, [&](auto& shard) {
        const dist::HeldRows held(shard, {7, shard.index() == 0 ? first : second});
        held.expect_dealt("here", "expert.up", 1, rows);
      });
    } catch (const ArgumentError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(check(3, 2, {&deal, {0, 5}}) == "");
  CHECK(check(1, 2, {&deal, {0, 3}}) == "");
  CHECK(check(0, 0, {&deal, {0, 5}}) == "");  // no experts of this group
  CHECK(check(4, 2, {}) == "");               // dealt by rows
  CHECK(check(3, 3, {&deal, {0, 5}}) == "here: expert.up: expected 2 experts on shard 1, got 3");
  CHECK(check(5, 0, {&deal, {0, 5}}) == "here: expert.up: expected 3 experts on shard 0, got 5");
}
