#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/group.hpp"

namespace gatefold::dist {

/// Which shard holds which expert of a mixture. Any shard may hold any of them, or none; without entries they are dealt
/// evenly and in order. It decides what a shard computes and how much crosses, and reaches no bit of what they compute
/// together.
struct Placement {
  std::vector<Index> shard_of{};  // [E] or empty

  /// Those of shard j are Range::of(experts, j, shards).
  static Placement even(Index experts, Index shards) {
    Placement p;
    for (Index j = 0; j < shards; ++j)
      p.shard_of.insert(p.shard_of.end(), static_cast<std::size_t>(Range::of(experts, j, shards).count), j);
    return p;
  }
  Index experts() const { return static_cast<Index>(shard_of.size()); }
  bool on(Index shard, Index expert) const { return shard_of[static_cast<std::size_t>(expert)] == shard; }

  /// Of the experts `among` those of a shard, ascending, the first of `among` being 0: its rows of their tensors.
  std::vector<Index> experts_of(Index shard, const Range& among) const {
    std::vector<Index> found;
    for (Index e = 0; e < among.count; ++e)
      if (on(shard, among.first + e)) found.push_back(e);
    return found;
  }
  std::vector<Index> experts_of(Index shard) const { return experts_of(shard, {0, experts()}); }
  /// The same of every shard.
  std::vector<std::vector<Index>> by_shard(Index shards, const Range& among) const {
    std::vector<std::vector<Index>> found(static_cast<std::size_t>(shards));
    for (Index e = 0; e < among.count; ++e)
      found[static_cast<std::size_t>(shard_of[static_cast<std::size_t>(among.first + e)])].push_back(e);
    return found;
  }
  Index count(Index shard, const Range& among) const {
    const auto first = shard_of.begin() + among.first;
    return std::count(first, first + among.count, shard);
  }
  Index count(Index shard) const { return count(shard, {0, experts()}); }
  /// Whether the experts of all shards, one shard after the other, are in order.
  bool in_order(const Range& among) const {
    const auto first = shard_of.begin() + among.first;
    return std::is_sorted(first, first + among.count);
  }

  /// This one, or where it has no entries the even one.
  /// @throws ArgumentError unless there is a shard in [0, shards) for each expert
  Placement filled(const char* where, Index of_experts, Index shards) const {
    if (shard_of.empty()) return even(of_experts, shards);
    expect(experts() == of_experts, where, "placement", Joined{"a shard for each of ", of_experts, " experts"},
           experts());
    for (Index e = 0; e < of_experts; ++e) {
      const Index j = shard_of[static_cast<std::size_t>(e)];
      expect(j >= 0 && j < shards, where, Joined{"placement[", e, "]"}, Joined{"a shard in [0, ", shards, ")"}, j);
    }
    return *this;
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

}  // namespace gatefold::dist
