#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gatefold/distributed/memory.hpp"

namespace gatefold::dist {

/// A copy of an expert on a shard other than Placement::shard_of[expert].
struct Copy {
  Index expert, shard;
  friend bool operator==(const Copy&, const Copy&) = default;
};

/// The assignment of a mixture's experts to shards. A shard can hold any number of experts, also 0. Without entries,
/// experts are distributed evenly and in order. A placement determines the work of each shard and the transfers, but
/// changes no bit of the results.
struct Placement {
  std::vector<Index> shard_of{};  // [E] the shard of each expert; empty: evenly and in order
  /// Copies of experts on further shards. They are only for inference (replicate.hpp), because an expert that learns
  /// must be on one shard.
  std::vector<Copy> copies{};

  /// Returns the even placement. Shard j holds the consecutive experts Range::of(experts, j, shards).
  static Placement even(Index experts, Index shards) {
    Placement p;
    for (Index j = 0; j < shards; ++j)
      p.shard_of.insert(p.shard_of.end(), static_cast<std::size_t>(Range::of(experts, j, shards).count), j);
    return p;
  }
  Index experts() const { return static_cast<Index>(shard_of.size()); }
  bool on(Index shard, Index expert) const {
    return shard_of[static_cast<std::size_t>(expert)] == shard ||
           std::find(copies.begin(), copies.end(), Copy{expert, shard}) != copies.end();
  }
  /// Returns the indices of the shards that hold `expert`, in ascending order.
  std::vector<Index> shards_of(Index expert) const {
    std::vector<Index> found{shard_of[static_cast<std::size_t>(expert)]};
    for (const Copy& c : copies)
      if (c.expert == expert) found.push_back(c.shard);
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Returns the experts in the range `among` that a shard holds, in ascending order, as numbers relative to
  /// among.first. In a tensor with one row for each expert of `among`, these are the numbers of the rows that the shard
  /// holds.
  std::vector<Index> experts_of(Index shard, const Range& among) const {
    std::vector<Index> found;
    for (Index e = 0; e < among.count; ++e)
      if (on(shard, among.first + e)) found.push_back(e);
    return found;
  }
  std::vector<Index> experts_of(Index shard) const { return experts_of(shard, {0, experts()}); }
  /// Returns, for each shard, a list of the experts of the range `among` that the shard holds. The lists have the
  /// numbers of the experts within the range: 0 is expert `among.first`.
  std::vector<std::vector<Index>> by_shard(Index shards, const Range& among) const {
    std::vector<std::vector<Index>> found(static_cast<std::size_t>(shards));
    for (Index e = 0; e < among.count; ++e)
      found[static_cast<std::size_t>(shard_of[static_cast<std::size_t>(among.first + e)])].push_back(e);
    if (copies.empty()) return found;
    for (const Copy& c : copies)
      if (among.has(c.expert)) found[static_cast<std::size_t>(c.shard)].push_back(c.expert - among.first);
    for (auto& experts : found) std::sort(experts.begin(), experts.end());
    return found;
  }
  Index count(Index shard, const Range& among) const {
    const auto first = shard_of.begin() + among.first;
    return std::count(first, first + among.count, shard) +
           std::count_if(copies.begin(), copies.end(),
                         [&](const Copy& c) { return c.shard == shard && among.has(c.expert); });
  }
  Index count(Index shard) const { return count(shard, {0, experts()}); }
  /// Returns whether the experts in the range `among` are in ascending order if they are listed shard by shard. Do not
  /// call it if experts have copies.
  bool in_order(const Range& among) const {
    const auto first = shard_of.begin() + among.first;
    return std::is_sorted(first, first + among.count);
  }

  /// Returns this placement, or the even placement if this one has no entries.
  /// @throws ArgumentError unless there is a shard in [0, shards) for each expert and each copy, and no shard holds an
  ///         expert twice
  Placement filled(const char* where, Index of_experts, Index shards) const {
    Placement p = *this;
    if (shard_of.empty()) p.shard_of = even(of_experts, shards).shard_of;
    expect(p.experts() == of_experts, where, "placement", Joined{"a shard for each of ", of_experts, " experts"},
           p.experts());
    const auto expect_shard = [&](Printed name, Index j) {
      expect(j >= 0 && j < shards, where, name, Joined{"a shard in [0, ", shards, ")"}, j);
    };
    for (Index e = 0; e < of_experts; ++e)
      expect_shard(Joined{"placement[", e, "]"}, p.shard_of[static_cast<std::size_t>(e)]);
    p.copies.clear();
    for (const Copy& c : copies) {
      const Index i = static_cast<Index>(p.copies.size());
      expect(c.expert >= 0 && c.expert < of_experts, where, Joined{"placement.copies[", i, "].expert"},
             Joined{"an expert in [0, ", of_experts, ")"}, c.expert);
      expect_shard(Joined{"placement.copies[", i, "].shard"}, c.shard);
      expect(!p.on(c.shard, c.expert), where, Joined{"placement.copies[", i, "].shard"},
             Joined{"a shard that does not hold expert ", c.expert, " yet"}, c.shard);
      p.copies.push_back(c);
    }
    return p;
  }
  /// Returns this placement, after a check that no expert is on several shards.
  /// @throws ArgumentError if experts have copies
  const Placement& without_copies(const char* where) const {
    expect(copies.empty(), where, "placement.copies",
           "0 copies, because experts with copies (dist::replicate) can only be used for inference", copies.size());
    return *this;
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Returns the load of every shard: the sum of the loads of its experts.
///
///     L_j = Σ_{e on j} l_e;   the load of an expert on several shards is divided as evenly as possible  (1)
///
/// @param loads  [E] the load l_e of each of the E experts, for example its number of slots (items that it computes)
inline std::vector<Index> loads_of_shards(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  expect(static_cast<Index>(loads.size()) == placement.experts(), "loads_of_shards", "loads",
         Joined{"one load for each of ", placement.experts(), " experts"}, loads.size());
  std::vector<Index> of(static_cast<std::size_t>(shards));
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const std::vector<Index> on = placement.shards_of(static_cast<Index>(e));
    for (std::size_t i = 0; i < on.size(); ++i)
      of[static_cast<std::size_t>(on[i])] +=
          Range::of(loads[e], static_cast<Index>(i), static_cast<Index>(on.size())).count;
  }
  return of;
}
/// Returns the load of the busiest shard divided by the mean load of a shard. This is the factor by which the experts
/// of a step take longer than with an even load.
///
///     max_j L_j / (Σ_j L_j / C),   L_j: load of shard j, C: number of shards                            (2)
///
/// @return 1 if the loads of the shards are equal, C if one shard has all load; also 1 if there is no load
inline double imbalance(const std::vector<Index>& loads, const Placement& placement, Index shards) {
  const std::vector<Index> of = loads_of_shards(loads, placement, shards);
  const Index total = std::accumulate(of.begin(), of.end(), Index(0));
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(of.begin(), of.end())) * static_cast<double>(shards) /
         static_cast<double>(total);
}

/// Divides the work of each expert among the shards that hold the expert. The unit of work is a slot: one item that the
/// expert computes. Expert e is on c shards, and has n slots from the items of all shards:
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
    const std::vector<Index> counts = shard.all_gather(own);
    for (std::size_t e = 0; e < own.size(); ++e) {
      shards_of_[e] = placement.shards_of(static_cast<Index>(e));
      for (Index j = 0; j < shard.count(); ++j) {
        const Index n = counts[at(j) * own.size() + e];
        all_[e] += n;
        if (j < shard.index()) before_[e] += n;
      }
    }
  }

  /// Returns the range of this shard's slots of `expert` that the shard with number `shard` computes. The range counts
  /// from this shard's first slot of `expert`, which is slot 0.
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
