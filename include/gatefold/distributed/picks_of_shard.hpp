#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/distributed/memory.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Splits a routing plan: extracts the picks of one shard's items from the plan of all shards' items. A pick is one
/// choice of an expert for an item.
namespace gatefold {

namespace functor {

/// Copies the picks (item, expert, weight) of one shard's items from a whole plan into the shard's own plan. A call
/// copies pick i of the shard.
template <class T, class B>
struct TakePicks {
  View<const Index, 1, B> picks, item, expert;
  View<const T, 1, B> weight;
  Index first;  // number of the shard's first item
  View<Index, 1, B> own_item, own_expert;
  View<T, 1, B> own_weight;
  GATEFOLD_HD void operator()(Index i) const {
    const Index p = picks(i);
    own_item(i) = item(p) - first;
    own_expert(i) = expert(p);
    own_weight(i) = weight(p);
  }
};
/// Copies the gradients of the weights of picks from a shard's own plan to the positions of these picks in the whole
/// plan. A call copies pick i of the shard.
template <class T, class B>
struct GivePicks {
  View<const Index, 1, B> picks;
  View<const T, 1, B> own;
  View<T, 1, B> all;
  GATEFOLD_HD void operator()(Index i) const { all(picks(i)) = own(i); }
};

}  // namespace functor

namespace dist {

/// Makes the routing plan of items [first, first + count) from the plan of all items, with the picks (choices of
/// experts) in the same order.
/// @param picks  out  the positions of the copied picks in `all`
/// @param own  out  the plan of only these items
/// @cost   on a device, the host reads the item and the expert of each pick
template <class T, class B>
void take_picks(typename B::Context& ctx, const SparsePlan<T, B>& all, Index first, Index count,
                Tensor<Index, 1, B>& picks, SparsePlan<T, B>& own) {
  const auto memory = memory_of(ctx);
  const auto item = memory.read(all.item.data(), all.item.size()),
             expert = memory.read(all.expert.data(), all.expert.size());
  std::vector<Index> found;
  for (std::size_t p = 0; p < item.size(); ++p)
    if (expert[p] != no_pick && first <= item[p] && item[p] < first + count) found.push_back(static_cast<Index>(p));
  picks.resize(found.size());
  memory.copy(found.data(), picks.size(), picks.data());
  memory.finish();
  own.resize(count, all.experts(), picks.size());
  B::for_each(
      ctx, picks.size(),
      functor::TakePicks<T, B>{picks, all.item, all.expert, all.weight, first, own.item, own.expert, own.weight});
  own.build(ctx);
}
/// The backward pass of take_picks: copies the gradients of the weights of a shard's picks (choices of experts) to the
/// positions `picks` in the gradients of the whole plan.
template <class T, class B>
void give_picks(typename B::Context& ctx, View<const Index, 1, B> picks, View<const T, 1, B> own, View<T, 1, B> all) {
  B::for_each(ctx, picks.size(), functor::GivePicks<T, B>{picks, own, all});
}

}  // namespace dist
}  // namespace gatefold
