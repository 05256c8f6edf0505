#pragma once

#include "gatefold/metric/metric.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

namespace functor {

template <class T, class B>
struct PicksByWeight;
template <class B>
struct PicksDiffer;

enum class PickChange { set, ordered, first };

}  // namespace functor

namespace metric {

/// Returns a copy of the experts that a plan has for each item, to compare them with the experts in a later plan
/// of the same items (`fluctuation`). A copy is needed because the next step overwrites the plan.
/// @param k  number of picks to keep per item
/// @return [N, k] experts of each item by decreasing weight, then −1 if an item has fewer than k
/// @throws ArgumentError unless k >= 1
/// @order  ties go to the lower expert index; NaN weights come last
template <class T, class B>
Tensor<Index, 2, B> picks(typename B::Context& ctx, const SparsePlan<T, B>& plan, Index k) {
  expect(k >= 1, "picks", "k", "at least 1", k);
  const auto here = ctx.here();
  Tensor<Index, 2, B> out(plan.items(), k);
  B::for_each(
      ctx, plan.items(),
      functor::PicksByWeight<T, B>{plan.item_offsets, plan.item_slots, plan.pick, plan.expert, plan.weight, out});
  return out;
}

/// The shares of items whose experts differ between two times, counted in three ways.
struct Fluctuation {
  double set = 0;      // share of items with a different set of experts
  double ordered = 0;  // share of items with different experts, or with the same experts in a different order
  double first = 0;    // share of items with a different best expert
};

/// Compares the experts of the same items at two times, for example after two epochs, and returns the shares of items
/// with different experts. […] is 1 if the statement holds, otherwise 0; {…} is a set.
///
///     set     = (1/N) Σ_n [ {before[n,:]} ≠ {after[n,:]} ]                                              (1)
///     ordered = (1/N) Σ_n [ before[n,:] ≠ after[n,:] ]                                                  (2)
///     first   = (1/N) Σ_n [ before[n,0] ≠ after[n,0] ]                                                  (3)
///
/// Source: paper 002 (Graph of Tokens), sec. 5 and fig. 3: tokens that change their experts between the last two
/// epochs. For K > 1, the paper does not define which of the three shares it counts; `set` is the literal reading.
/// @param before, after [N, K] in  results of `picks`, which can have different K; a negative entry is not a pick
/// @param valid         [N]    in  1 = item, 0 = padding; empty: all are items
/// @throws ArgumentError unless `before` and `after` have the same N, and `valid` is empty or [N]
template <class BeforeT, class AfterT, class B, class T = const float>
Fluctuation fluctuation(typename B::Context& ctx, View<BeforeT, 2, B> before, View<AfterT, 2, B> after,
                        View<T, 1, B> valid = {}) {
  expect_shape("fluctuation", "after", after, {before.extent(0), any_extent});
  const auto share = [&](functor::PickChange what) {
    return mean<std::remove_const_t<T>, B>(ctx, before.extent(0), functor::PicksDiffer<B>{before, after, what}, valid);
  };
  return {share(functor::PickChange::set), share(functor::PickChange::ordered), share(functor::PickChange::first)};
}

}  // namespace metric

namespace functor {

/// Writes the experts of item n to row n of `out` by decreasing weight, and −1 to the rest of the row. NaN weights come
/// last; ties go to the lower expert index.
template <class T, class B>
struct PicksByWeight {
  View<const Index, 1, B> item_offsets, item_slots, pick, expert;
  View<const T, 1, B> weight;
  View<Index, 2, B> out;
  GATEFOLD_HD bool before(Index s, Index t) const {
    const T a = weight(pick(s)), b = weight(pick(t));
    if ((a == a) != (b == b)) return a == a;
    return a > b || (!(b > a) && s < t);  // slots are sorted by expert: the lower slot has the lower expert
  }
  GATEFOLD_HD void operator()(Index n) const {
    for (Index j = 0; j < out.extent(1); ++j) out(n, j) = -1;
    for (Index o = item_offsets(n); o < item_offsets(n + 1); ++o) {
      Index place = 0;
      for (Index other = item_offsets(n); other < item_offsets(n + 1); ++other)
        place += before(item_slots(other), item_slots(o));
      if (place < out.extent(1)) out(n, place) = expert(pick(item_slots(o)));
    }
  }
};

/// Returns 1 if the experts of item n differ between `before` and `after`, otherwise 0. `what` selects whether sets,
/// ordered lists or only the best experts are compared. Negative entries are not experts.
template <class B>
struct PicksDiffer {
  View<const Index, 2, B> before, after;
  PickChange what;
  GATEFOLD_HD static Index at(View<const Index, 2, B> picks, Index n, Index j) {
    return j < picks.extent(1) && picks(n, j) >= 0 ? picks(n, j) : Index(-1);
  }
  GATEFOLD_HD static bool within(View<const Index, 2, B> part, View<const Index, 2, B> whole, Index n) {
    for (Index j = 0; j < part.extent(1); ++j) {
      bool found = at(part, n, j) < 0;
      for (Index i = 0; i < whole.extent(1); ++i) found = found || at(part, n, j) == at(whole, n, i);
      if (!found) return false;
    }
    return true;
  }
  GATEFOLD_HD double operator()(Index n) const {
    if (what == PickChange::set) return within(before, after, n) && within(after, before, n) ? 0 : 1;
    const Index most = before.extent(1) > after.extent(1) ? before.extent(1) : after.extent(1);
    for (Index j = 0; j < (what == PickChange::first ? Index(1) : most); ++j)
      if (at(before, n, j) != at(after, n, j)) return 1;
    return 0;
  }
};

}  // namespace functor

}  // namespace gatefold
