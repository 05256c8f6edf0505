#pragma once

#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/distributed/placement.hpp"
#include "gatefold/expert/experts.hpp"

/// Parameters of experts that are distributed over the shards.
namespace gatefold::dist {

/// The assignment of experts to shards, for a pack (a struct of named tensors, for example parameters).
struct Deal {
  Placement placement;
  Index shards;
  /// For each tensor, in the order of each(): the range of experts that have a row in it. With several kinds of experts
  /// (Experts), a tensor has rows only for the experts of its kind.
  std::vector<Range> experts{};
};

/// This shard's part of a pack (a struct of named tensors) whose experts are distributed over the shards. The tensors
/// have the names of the whole pack, and functions of packs work on the part. If a visitor of for_each_tensor has a
/// member `sharded(name, pack...)`, it is called once with the Sharded pack instead of with each tensor.
template <class P>
struct Sharded {
  static constexpr bool sharded = true, gradient_is_optional = gatefold::gradient_is_optional<P>;
  P part;
  /// Which shard holds which expert. Packs made from the parameters, for example gradients, share this object with the
  /// parameters. If it is null, as in the state of Zero, the rows of all shards, in their order, form the whole tensor.
  std::shared_ptr<const Deal> deal{};
  void lie_as(const Sharded& other) { deal = other.deal; }
  bool lies_as(const Sharded& other) const { return !deal || !other.deal || deal->placement == other.deal->placement; }
  void expect_lies_as(const Sharded& other) const {
    if (lies_as(other)) return;
    const bool copies = !deal->placement.copies.empty() || !other.deal->placement.copies.empty();
    expect(false, "Sharded", "packs", "packs with their experts on the same shards",
           copies ? "a pack with copies of experts (dist::replicate), which can only be used for inference: remove the "
                    "copies first"
                  : "a pack with experts on other shards (move_experts moves only the experts of the run)");
  }
  /// Visits the tensors of several packs together.
  /// @throws ArgumentError if the packs have experts on different shards, for example because one was made before
  ///         experts moved
  static void each(auto&& f, auto& first, auto&... more) {
    (more.expect_lies_as(first), ...);
    if constexpr (detail_::pack::check<P>()) P::each(f, first.part, more.part...);
  }
};

namespace sharded {

/// A visitor that collects the deal (which shard holds which expert) of each pack of distributed experts.
struct Deals {
  std::vector<std::shared_ptr<const Deal>> found{};
  void operator()(const Name&, const auto&) const {}
  void sharded(const Name&, const auto& pack) { found.push_back(pack.deal); }
};

}  // namespace sharded

/// Returns the deals of a model's parameters, one for each ExpertParallel, in order. A deal is the assignment of
/// experts to shards.
std::vector<std::shared_ptr<const Deal>> deals_of(const auto& params) {
  sharded::Deals deals;
  for_each_tensor(deals, params);
  return std::move(deals.found);
}

/// The rows of one tensor of distributed experts, one row per expert, and the shards that hold them.
struct DealtRows {
  const Deal* deal = nullptr;
  Range experts{};
  bool in_order() const { return !deal || deal->placement.in_order(experts); }
  /// Checks that no expert has copies.
  /// @throws ArgumentError if an expert is on several shards
  void expect_once(const char* where) const {
    if (deal) deal->placement.without_copies(where);
  }
  /// Returns the row numbers that a shard holds, in their order on that shard.
  std::vector<Index> of(Index shard) const { return deal->placement.experts_of(shard, experts); }
  std::vector<std::vector<Index>> by_shard() const { return deal->placement.by_shard(deal->shards, experts); }
};

namespace sharded {

/// A visitor that calls f(name, tensor, rows) for every tensor. `rows` says which shard holds which row if the tensor
/// is in a Sharded pack (distributed experts), and is empty for other tensors. If several packs are visited together,
/// the tensors of the other packs are the last arguments.
template <bool OnlyLearned, class F>
struct Visitor {
  F& f;
  const Deal* deal = nullptr;
  std::size_t next = 0;
  void operator()(const Name& at, auto& t, auto&... more) {
    f(at, t, deal ? DealtRows{deal, deal->experts[next++]} : DealtRows{}, more...);
  }
  void sharded(const Name& at, auto& pack, auto&... more) {
    Visitor within{f, pack.deal.get()};
    detail_::pack::visit<OnlyLearned>(within, at, pack.part, more.part...);
  }
};

/// Copies the rows of one shard's experts from the tensor `all` to the tensor `part`. `all` has a row for each expert
/// of the range `experts`.
template <class M>
struct TakeExperts {
  const M& memory;
  Deal& deal;
  Index shard;
  Range experts;
  template <class T, int Rank, class B>
  void operator()(Tensor<T, Rank, B>& part, const Tensor<T, Rank, B>& all) const {
    deal.experts.push_back(experts);
    const std::vector<Index> mine = deal.placement.experts_of(shard, experts);
    rows::resize(part, all, static_cast<Index>(mine.size()));
    if (all.data() != nullptr)  // `all` has no data in count_parameters
      rows::pick(memory, all.data(), mine, rows::width(all), part.data());
  }
};

/// Calls f<At>(range) for each kind At of experts in a policy of type Experts. `range` has the experts of this kind, as
/// a part of the range `experts`.
template <class F, class... K>
void each_kind(const Experts<K...>& of, const Range& experts, const F& f) {
  Index first = experts.first;
  const auto one = [&]<std::size_t At>() {
    f.template operator()<At>(Range{first, of.counts[At]});
    first += of.counts[At];
  };
  const auto kinds = [&]<std::size_t... At>(std::index_sequence<At...>) { (one.template operator()<At>(), ...); };
  kinds(std::index_sequence_for<K...>{});
}

/// Checks that every tensor of the experts' parameters has one row for each expert.
struct ExpectExperts {
  Index experts;
  void operator()(const Name& at, const auto& t) const {
    expect(t.extent(0) == experts, "ExpertParallel", at,
           Joined{"a first extent of ", experts, " (the number of experts)"}, t.extent(0));
  }
};
template <class E, class M, class P>
void take_experts(const E&, const TakeExperts<M>& take, const Name& at, P& part, const P& all) {
  ExpectExperts expected{take.experts.count};
  detail_::pack::visit<false>(expected, at, all);
  detail_::pack::structure_like(part, all, take);
}
template <class... K, class M, class P>
void take_experts(const Experts<K...>& of, const TakeExperts<M>& take, const Name& at, P& part, const P& all) {
  const Name kinds{&at, "kinds"};
  each_kind(of, take.experts, [&]<std::size_t At>(const Range& kind) {
    take_experts(std::get<At>(of.kinds), TakeExperts<M>{take.memory, take.deal, take.shard, kind},
                 Name{&kinds, static_cast<Index>(At)}, std::get<At>(part.kinds), std::get<At>(all.kinds));
  });
}

}  // namespace sharded

/// Returns the policy (options) for the experts of one shard. If the policy has the type Experts, the result has the
/// number of experts of each kind on that shard. Other policies are returned unchanged.
template <class E>
E some_experts(const E& expert, const Placement&, Index, const Range&) {
  return expert;
}
template <class... K>
Experts<K...> some_experts(const Experts<K...>& of, const Placement& placement, Index shard, const Range& experts) {
  Experts<K...> some = of;
  sharded::each_kind(of, experts, [&]<std::size_t At>(const Range& kind) {
    std::get<At>(some.kinds) = some_experts(std::get<At>(of.kinds), placement, shard, kind);
    some.counts[At] = placement.count(shard, kind);
  });
  return some;
}

/// Copies the parameters of one shard's experts from `all`, the parameters of all experts, to `mine`.
/// @param placement  a placement (which shard holds which expert) that has an entry for each expert
/// @throws ArgumentError if the first extent of a tensor is not the number of experts, naming the tensor
template <class C, class E, class P>
void take_experts(C& ctx, const E& expert, const Placement& placement, Index shard, Index shards, Sharded<P>& mine,
                  const P& all) {
  const auto here = ctx.here();
  const auto memory = memory_of(ctx);
  auto deal = std::make_shared<Deal>(Deal{placement, shards, {}});
  const sharded::TakeExperts<decltype(memory_of(ctx))> take{memory, *deal, shard, {0, placement.experts()}};
  sharded::take_experts(expert, take, Name{}, mine.part, all);
  memory.finish();
  mine.deal = std::move(deal);
}

/// The number of rows that each shard holds of each distributed tensor, for example one row per expert. Every shard has
/// these numbers of all shards.
class HeldRows {
 public:
  /// Gathers the numbers of rows from all shards.
  /// @param mine  first extents of this shard's tensors, in the same order on all shards
  /// @cost   an exchange of one number per tensor
  template <class ShardT>
  HeldRows(ShardT& shard, const std::vector<Index>& mine)
      : by_tensor_(mine.size(), std::vector<Index>(static_cast<std::size_t>(shard.count()))) {
    const std::vector<Index> all = shard.all_gather(mine);
    for (std::size_t at = 0; at < all.size(); ++at) by_tensor_[at % mine.size()][at / mine.size()] = all[at];
  }

  /// Returns the number of rows of a tensor on each shard.
  const std::vector<Index>& of(std::size_t tensor) const { return by_tensor_[tensor]; }
  Index count(std::size_t tensor) const { return std::accumulate(of(tensor).begin(), of(tensor).end(), Index(0)); }
  /// Returns the total number of rows of a tensor on the shards before `shard`, that is, on shards 0 to shard − 1.
  Index before(std::size_t tensor, Index shard) const {
    return std::accumulate(of(tensor).begin(), of(tensor).begin() + shard, Index(0));
  }
  /// Checks that every shard holds as many rows of a tensor as experts are assigned to the shard. The check also
  /// succeeds if no shard holds any rows, for example in the state of an optimizer that does not update the tensor
  /// (another group of InGroups).
  /// @throws ArgumentError on all shards, with the name of the tensor, if the check fails
  void expect_dealt(const char* where, const std::string& name, std::size_t tensor, const DealtRows& rows) const {
    if (!rows.deal || count(tensor) == 0) return;
    for (Index j = 0; j < static_cast<Index>(of(tensor).size()); ++j) {
      const Index dealt = rows.deal->placement.count(j, rows.experts), held = of(tensor)[static_cast<std::size_t>(j)];
      expect(held == dealt, where, name, Joined{dealt, " experts on shard ", j}, held);
    }
  }

 private:
  std::vector<std::vector<Index>> by_tensor_;
};

}  // namespace gatefold::dist
