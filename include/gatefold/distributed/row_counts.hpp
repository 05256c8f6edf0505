#pragma once

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "gatefold/distributed/sharded.hpp"

namespace gatefold::dist {

/// The number of rows that each shard holds of each distributed tensor, for example one row per expert. All shards know
/// these numbers.
class HeldRows {
 public:
  /// Gathers the numbers of rows from all shards.
  /// @param mine  first extents of this shard's tensors, in the same order on all shards
  /// @cost   an exchange of one number per tensor
  template <class ShardT>
  HeldRows(ShardT& shard, const std::vector<Index>& mine)
      : by_tensor_(mine.size(), std::vector<Index>(static_cast<std::size_t>(shard.count()))) {
    std::vector<Index> all(mine.size() * static_cast<std::size_t>(shard.count()));
    shard.all_gather(mine.data(), static_cast<Index>(mine.size()), all.data());
    for (std::size_t at = 0; at < all.size(); ++at) by_tensor_[at % mine.size()][at / mine.size()] = all[at];
  }

  /// Returns the number of rows of a tensor on each shard.
  const std::vector<Index>& of(std::size_t tensor) const { return by_tensor_[tensor]; }
  Index count(std::size_t tensor) const { return std::accumulate(of(tensor).begin(), of(tensor).end(), Index(0)); }
  /// Returns the number of rows of a tensor on all shards with a number below `shard`.
  Index before(std::size_t tensor, Index shard) const {
    return std::accumulate(of(tensor).begin(), of(tensor).begin() + shard, Index(0));
  }
  /// Checks that every shard holds as many rows of a tensor as experts are assigned to it. It is also correct if no
  /// shard holds any rows. This is so in the state of an optimizer that does not update the tensor (another group of
  /// InGroups).
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
