#pragma once

#include <cstddef>
#include <vector>

#include "gatefold/metric/metric.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

namespace functor {

/// Returns the position of pick p, class · E + expert, in a table with a row for each class and a column for each of E
/// experts. Returns −1 if the pick was dropped, entry p of the plan is unused, or the item is padding.
template <class T, class B>
struct ClassAndExpert {
  View<const Index, 1, B> item, expert, labels;
  Index classes, experts;
  IsItem<T, B> is_item;
  GATEFOLD_HD Index operator()(Index p) const {
    if (expert(p) < 0 || !is_item(item(p))) return -1;
    const Index label = labels(item(p));
    GATEFOLD_ASSERT(0 <= label && label < classes, "routing_table: label out of range");
    return label * experts + expert(p);
  }
};

}  // namespace functor

namespace metric {

/// The number of picks for each pair of a class (of the item) and an expert.
struct RoutingTable {
  Index classes = 0, experts = 0;
  std::vector<Index> counts;  // [C, E]

  Index operator()(Index c, Index e) const { return counts[static_cast<std::size_t>(c * experts + e)]; }
  Index of_class(Index c) const {
    Index n = 0;
    for (Index e = 0; e < experts; ++e) n += (*this)(c, e);
    return n;
  }
  Index of_expert(Index e) const {
    Index n = 0;
    for (Index c = 0; c < classes; ++c) n += (*this)(c, e);
    return n;
  }
  /// Returns the share of expert e in the picks of all items of class c, or 0 for a class without picks.
  double share_of_class(Index c, Index e) const { return share((*this)(c, e), of_class(c)); }
  /// Returns the share of items of class c in the picks of expert e, or 0 for an expert without picks.
  double share_of_expert(Index c, Index e) const { return share((*this)(c, e), of_expert(e)); }

 private:
  static double share(Index part, Index whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
  }
};

/// Counts the picks for each pair of a class and an expert.
///
///     n[c,e] = |{picks of items with label c that go to expert e}|                                      (1)
///
/// Source: paper 000 (Mixture-of-Transformers), fig. 3 (`share_of_class`); paper 003 (Expert Count), n_{k,m} of eq.
/// (7). Dropped picks do not count.
/// @param labels [N] in  in [0, classes): classes, or the clusters from which the data were drawn
/// @param valid  [N] in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless classes >= 1 and there is one label per item, in [0, classes) unless the item is
///         padding (on a device, only debug builds check the range)
/// @cost  O(S + C·E)
template <class T, class B>
RoutingTable routing_table(typename B::Context& ctx, const SparsePlan<T, B>& plan, In<Index, 1, B> labels,
                           Index classes, In<T, 1, B> valid = {}) {
  expect(classes >= 1, "routing_table", "classes", "at least 1", classes);
  expect_labels<T, B>("routing_table", plan.items(), classes, labels, valid);
  const functor::ClassAndExpert<T, B> key{plan.item, plan.expert, labels, classes, plan.experts(), {valid}};
  return {classes, plan.experts(), histogram<B>(ctx, plan.expert.size(), key, classes * plan.experts())};
}

}  // namespace metric
}  // namespace gatefold
