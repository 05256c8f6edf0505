#pragma once

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/sharded.hpp"

namespace gatefold::dist {

/// How many rows every shard holds of tensors of Sharded packs, known to all.
class HeldRows {
 public:
  /// @param mine  first extents of this shard's tensors, in an order that is the same on all
  /// @cost  an exchange of so many numbers
  template <class ShardT>
  HeldRows(ShardT& shard, const std::vector<Index>& mine)
      : by_tensor_(mine.size(), std::vector<Index>(static_cast<std::size_t>(shard.count()))) {
    std::vector<Index> all(mine.size() * static_cast<std::size_t>(shard.count()));
    shard.all_gather(mine.data(), static_cast<Index>(mine.size()), all.data());
    for (std::size_t at = 0; at < all.size(); ++at) by_tensor_[at % mine.size()][at / mine.size()] = all[at];
  }

  /// By shard.
  const std::vector<Index>& of(std::size_t tensor) const { return by_tensor_[tensor]; }
  Index count(std::size_t tensor) const { return std::accumulate(of(tensor).begin(), of(tensor).end(), Index(0)); }
  /// Of the shards before one.
  Index before(std::size_t tensor, Index shard) const {
    return std::accumulate(of(tensor).begin(), of(tensor).begin() + shard, Index(0));
  }
  /// Require that rows are where they are dealt, or nowhere: a group of the parameters is a pack, some of whose tensors
  /// are empty.
  /// @throws ArgumentError on all shards, naming the tensor
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
