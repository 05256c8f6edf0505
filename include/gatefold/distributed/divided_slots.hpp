#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gatefold/distributed/group.hpp"
#include "gatefold/distributed/placement.hpp"

namespace gatefold::dist {

/// Divides the work on an expert among the shards that hold a copy of it. The unit of work is a slot: one item that the
/// expert computes. Expert e has n slots on c shards:
///
///     shard i of the c that hold expert e:  [⌊i n/c⌋, ⌊(i+1) n/c⌋) of the n slots of e, in the order of shards    (1)
///
/// @cost   an exchange of one number per expert if experts have copies; otherwise no transfer
class DividedSlots {
 public:
  /// Reads the number of slots of each expert on all shards.
  /// @param own  [E] the number of slots of each of the E experts from this shard's items
  template <class ShardT>
  DividedSlots(ShardT& shard, const std::vector<Index>& own, const Placement& placement)
      : own_(own), before_(own.size()), all_(own.size()), shards_of_(own.size()) {
    if (placement.copies.empty()) return;
    std::vector<Index> counts(own.size() * at(shard.count()));
    shard.all_gather(own.data(), static_cast<Index>(own.size()), counts.data());
    for (std::size_t e = 0; e < own.size(); ++e) {
      shards_of_[e] = placement.shards_of(static_cast<Index>(e));
      for (Index j = 0; j < shard.count(); ++j) {
        const Index n = counts[at(j) * own.size() + e];
        all_[e] += n;
        if (j < shard.index()) before_[e] += n;
      }
    }
  }

  /// Returns the range of this shard's slots of `expert` that the shard with number `shard` computes. Number 0 is the
  /// first slot of this shard for this expert.
  Range own(Index expert, Index shard) const {
    const Index count = own_[at(expert)], before = before_[at(expert)];
    if (alone(expert)) return {0, count};
    const Range part = part_of(expert, shard);
    const Index first = std::clamp(part.first - before, Index(0), count);
    return {first, std::clamp(part.first + part.count - before, Index(0), count) - first};
  }
  /// Returns the number of slots of `expert`, on all shards, that precede the slots that the shard with number `shard`
  /// computes.
  Index before(Index expert, Index shard) const { return alone(expert) ? 0 : part_of(expert, shard).first; }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  bool alone(Index expert) const { return shards_of_[at(expert)].size() <= 1; }
  Range part_of(Index expert, Index shard) const {
    const std::vector<Index>& on = shards_of_[at(expert)];
    const Index place = std::lower_bound(on.begin(), on.end(), shard) - on.begin();
    return Range::of(all_[at(expert)], place, static_cast<Index>(on.size()));
  }

  // For each of E experts: the number of slots of this shard, of the shards before it, and of all shards.
  std::vector<Index> own_, before_, all_;
  std::vector<std::vector<Index>> shards_of_;  // [E] the shards that hold each expert; empty lists without copies
};

}  // namespace gatefold::dist
