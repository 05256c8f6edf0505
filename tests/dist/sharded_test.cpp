#include "gatefold/dist/sharded.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

/// The parts of all shards, one after the other, of every tensor; and the whole.
template <class E>
void check_parts(const E& expert, Index experts, Index shards) {
  Cpu::Context ctx(1);
  const auto all = expert.template init<double, Cpu>(ctx, experts, Seed{1});
  std::vector<std::vector<double>> joined;
  for (Index j = 0; j < shards; ++j) {
    const auto range = dist::Range::of(experts, j, shards);
    Params<E, double, Cpu> part;
    dist::take_experts(expert, experts, range, part, all);
    dist::some_experts(expert, range).validate(part, range.count);  // the shapes that its policy asks for
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
  static void each(auto&& f, auto&... p) {
    f("whole", p.whole...);
    f("expert", p.expert...);
  }
};

}  // namespace

TEST_CASE("the experts of all shards are those of the whole, in order") {
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

TEST_CASE("a tensor whose first extent is not the expert is refused") {
  const auto all = Linear{.model_dim = 3}.init<double, Cpu>(*std::make_unique<Cpu::Context>(1), 4, Seed{1});
  Linear::Params<double, Cpu> part;
  CHECK_THROWS_WITH_AS(dist::take_experts(Linear{}, 3, {0, 1}, part, all),
                       "ExpertParallel: a tensor of the experts: expected a first extent of 3, the experts, got 4",
                       ArgumentError);
}

TEST_CASE("kinds of experts within a range") {
  const std::array<Index, 3> counts{2, 3, 1};
  CHECK(dist::sharded::of_kind({1, 3}, counts, 0).first == 1);
  CHECK(dist::sharded::of_kind({1, 3}, counts, 0).count == 1);
  CHECK(dist::sharded::of_kind({1, 3}, counts, 1).first == 0);
  CHECK(dist::sharded::of_kind({1, 3}, counts, 1).count == 2);
  CHECK(dist::sharded::of_kind({1, 3}, counts, 2).count == 0);
}

TEST_CASE("a pack that is sharded has the names of the whole, and a visitor may tell it apart") {
  const Pack pack;
  Names names;
  for_each_tensor(names, pack);
  CHECK(names.seen == std::vector<std::string>{"whole", "expert.weight", "expert.bias"});
  NamesOfShards apart;
  for_each_tensor(apart, pack);
  CHECK(apart.seen == std::vector<std::string>{"whole", "part of expert"});
}
