#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "gatefold/backend/order.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CapacityOfGroup, PlacingKey, PriorityOfItem, DropOverflow, Renormalise,
                  RenormaliseBackward);

/// Limits the number of picks that each expert may have to its capacity C, and drops the other picks.
///
///     C = min(S, ⌈S·K·factor / E⌉), rounded up to a multiple of `multiple_of`                           (1)
///     w[n,e] ← w[n,e] · (Σ_f w[n,f] over all picks of n) / (Σ_f w[n,f] over its kept picks)   (renormalise)    (2)
///
/// S is the number of items in a group, and K the number of picks of an item. With an infinite factor, no pick is
/// dropped. An expert sorts its picks and keeps the first C of them. First choices of items come before second choices.
/// Among first (or second) choices, the picks of earlier items come first. If `batch_priority` is true, the items with
/// the largest q of their first choice come first instead. With noise, the softmax of the noisy values replaces q. The
/// weights have no effect on this order.
///
/// Dropped picks are stored as ~e in the plan and contribute 0 to the output. The weights of kept picks do not change,
/// unless `renormalise` is true. Then one factor scales them, so that their sum is the sum over all picks (2).
/// Padding takes no capacity and does not count in S. With group > 0, each `group` consecutive items form a group (the
/// last group can be smaller); otherwise all items are one group. Capacity is not causal, because the dropped picks of
/// an item depend on all items of the group, also on later items.
/// Source: Fedus et al. 2021, arXiv:2101.03961, eq. (3). Groups, batch_priority and the factors 1.05 in training and 4
/// in evaluation are from Riquelme et al. 2021, arXiv:2106.05974; `multiple_of` is from their code.
/// @param selection  a selection that writes picks n·K … n·K + K − 1 for item n, best first: TopK, NoisyTopK, …
/// @param slots      C, per expert and group; 0: C is computed by (1)
/// @param renormalise  if true, (2) is applied after picks were dropped. backward of the selection must then compute
///         the weights of its picks from the candidates, because plan.weight has the result of (2). The selections of
///         the library do so
/// @throws ArgumentError unless factor > 0, multiple_of >= 1, slots >= 0, group >= 0. Also in the cases in which the
///         selection throws
/// @cost   the cost of the selection and one counting sort of N·K picks by group and expert. If the selection saves
///         values or has no function `rows`, also a second build of the plan. With batch_priority, also a softmax if
///         there is noise, and a heap sort for each expert that overflows: 2·n·log₂ n comparisons for n picks
/// @order  ties of batch_priority go to the lower item
template <class SelectionT = TopK>
struct Capacity {
  GATEFOLD_REQUIRE(detail_::hook::selection::picks_by_item<SelectionT>(),
                   "gatefold: Capacity needs a selection with picks in the order of the items, best first; "
                   "ExpertChoice already limits the picks of each expert; see docs/how-to/extending.md#gate");
  GATEFOLD_REQUIRE(
      !detail_::named::auxiliary_loss<SelectionT>(),
      "gatefold: a Capacity does not pass on the auxiliary loss of its selection: put the Capacity inside, "
      "GlobalBalance<Capacity<>>; see docs/how-to/routers.md#balance-of-a-global-batch");
  static constexpr bool shows_noise = detail_::hook::selection::shows_noise<SelectionT>();
  SelectionT selection{};
  double factor = 1.05;
  Index multiple_of = 4;
  Index slots = 0;
  Index group = 0;
  bool batch_priority = false;
  bool renormalise = false;

  template <class T, class B>
  using Params = gatefold::Params<SelectionT, T, B>;
  template <class T, class B>
  struct Saved {
    gatefold::Saved<SelectionT, T, B> selection;
    Tensor<T, 1, B> factor;  // [N] of (2): sum of all weights / sum of kept weights; [0] unless renormalise
  };
  template <class T, class B>
  using Extra = gatefold::Extra<SelectionT, T, B>;

  /// Returns the capacity (1) of an expert: its largest number of picks in a group of `items` items, each with `picks`
  /// picks.
  Index room(Index items, Index picks, Index experts) const;

  template <class T, class B>
  auto init(typename B::Context& ctx, Seed seed) const {
    return init_params<T, B>(selection, ctx, seed);
  }
  void validate_options(Index experts) const {
    expect(factor > 0, "Capacity", "factor", "more than 0", factor);
    expect(multiple_of >= 1, "Capacity", "multiple_of", "at least 1", multiple_of);
    expect(slots >= 0, "Capacity", "slots", "at least 0", slots);
    expect(group >= 0, "Capacity", "group", "at least 0", group);
    if constexpr (detail_::hook::selection::validate_options<SelectionT>()) selection.validate_options(experts);
  }
  template <template <class, class> class P, class T, class B>
  void validate(const P<T, B>& p, Index items, const Extra<T, B>& extra) const {
    if constexpr (detail_::hook::selection::validate<SelectionT, T, B>()) selection.validate(p, items, extra);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    const Index items = c.q.extent(0), experts = c.q.extent(1);
    validate_options(experts);
    if constexpr (detail_::policy::KeepsNothing<SelectionT, T, B> &&
                  detail_::hook::selection::rows<SelectionT, T, B>()) {  // plan.build() is called below
      B::for_rows(ctx, items, selection.rows(c, plan, extra));
    } else {
      selection.forward(ctx, p, c, plan, saved.selection, extra);
    }
    saved.factor.resize(renormalise ? items : 0);
    if (items == 0) return plan.build(ctx);
    const Index count = plan.expert.size(), picks = count / items, size = group > 0 ? std::min(group, items) : items,
                groups = divide_up(items, size);
    auto mark = ctx.mark();
    auto room = ctx.template scratch<Index>(groups), key = ctx.template scratch<Index>(count),
         order = ctx.template scratch<Index>(count), offsets = ctx.template scratch<Index>(groups * experts + 1);
    B::for_rows(
        ctx, groups,
        functor::CapacityOfGroup<T, B>{{factor, multiple_of, slots, picks, experts}, items, size, c.valid, room});
    B::for_each(ctx, count, functor::PlacingKey<T, B>{items, picks, size, experts, c.valid, plan.expert, key});
    B::group_by(ctx, key, offsets, order);
    auto priority = ctx.template scratch<T>(batch_priority ? items : 0);
    B::for_each(ctx, priority.size(),
                functor::PriorityOfItem<T, B>{picks, compared(ctx, c, saved), plan.expert, priority});
    B::for_rows(ctx, groups * experts,
                functor::DropOverflow<T, B>{
                    {items, picks, priority}, batch_priority, experts, offsets, room, order, plan.expert});
    B::for_each(ctx, saved.factor.size(), functor::Renormalise<T, B>{picks, plan.expert, plan.weight, saved.factor});
    plan.build(ctx);
  }
  /// Returns the noisy values by which the selection ordered the experts. Returns empty views if the selection has no
  /// noise (no member `noisy`).
  template <class T, class B>
  NoisyRank<const T, B> noisy(const Saved<T, B>& saved) const {
    return detail_::selection::noisy_rank<T, B>(selection, saved.selection);
  }
  /// Calls backward of the selection with the gradients of the weights before the renormalisation (2). Without
  /// renormalisation, dropped picks have no effect, because the gradients of their weights are 0.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Saved<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Params<T, B>& grads, const Extra<T, B>& extra) const {
    if (!renormalise) return selection.backward(ctx, p, c, plan, saved.selection, dplan, d, grads, extra);
    const Index items = c.q.extent(0);
    expect_shape("Capacity.backward", "saved.factor", saved.factor, {items});
    auto mark = ctx.mark();
    const typename SparsePlan<T, B>::Grad before{ctx.template scratch<T>(plan.weight.size())};
    B::for_each(ctx, items,
                functor::RenormaliseBackward<T, B>{items > 0 ? plan.expert.size() / items : 0, plan.expert, plan.weight,
                                                   saved.factor, dplan.weight, before.weight});
    selection.backward(ctx, p, c, plan, saved.selection, before, d, grads, extra);
  }

 private:
  /// Returns the probabilities [N, E] by which `batch_priority` orders the items: q, or the softmax of the noisy
  /// values.
  template <class T, class B, class S>
  View<const T, 2, B> compared(auto& ctx, const Candidates<T, B>& c, const S& saved) const {
    const NoisyRank<const T, B> seen = noisy(saved);
    if (!batch_priority || !seen.value.data()) return c.q;
    const auto q = ctx.template scratch<T>(c.q.extent(0), c.q.extent(1));
    B::for_rows(ctx, q.extent(0), functor::Softmax<T, B>{seen.value, q});
    return q;
  }
};
template <class S>
Capacity(S) -> Capacity<S>;
template <class S>
Capacity(S, double) -> Capacity<S>;

namespace functor {

/// Returns the capacity of an expert, equation (1) of Capacity: its largest number of picks in a group of `items`
/// items. Padding does not count as an item.
struct CapacityRule {
  double factor;
  Index multiple_of, slots, picks, experts;  // picks: number of picks of an item

  GATEFOLD_HD Index operator()(Index items) const {
    if (slots > 0) return slots;
    const double share = static_cast<double>(items * picks) * factor / static_cast<double>(experts);
    // 100 · 1.1 / 10 is 11, but the floating-point result is larger and would be rounded up to 12.
    const double even = std::ceil(share * (1 - 0x1p-50));
    const Index most = even < static_cast<double>(items) ? static_cast<Index>(even) : items;
    return divide_up(most, multiple_of) * multiple_of;
  }
};

/// Writes room[g], the largest number of picks that an expert may have in group g of the items. Padding does not count
/// as an item of the group.
template <class T, class B>
struct CapacityOfGroup {
  CapacityRule room_of;
  Index items, group;
  View<const T, 1, B> valid;
  View<Index, 1, B> room;

  GATEFOLD_HD void operator()(const auto& lanes, Index g) const {
    const Index end = (g + 1) * group < items ? (g + 1) * group : items;
    Index count = 0;
    for (Index n = g * group + lanes.lane; n < end; n += lanes.size) count += !valid.data() || valid(n) != 0;
    count = lanes.sum(count);
    if (lanes.lane == 0) room(g) = room_of(count);
  }
};
/// Writes key[i] = group · E + expert, the key by which pick i is sorted, with E experts. Picks are numbered with first
/// choices before second choices: choice j of item n has number i = j·N + n. The key is −1 for padding and for picks
/// that were already dropped.
template <class T, class B>
struct PlacingKey {
  Index items, picks, group, experts;
  View<const T, 1, B> valid;
  View<const Index, 1, B> expert;
  View<Index, 1, B> key;
  GATEFOLD_HD void operator()(Index i) const {
    const Index n = i % items, e = expert(n * picks + i / items);
    key(i) = e < 0 || (valid.data() && valid(n) == 0) ? Index(-1) : n / group * experts + e;
  }
};
/// Writes priority[n], the probability q of the first choice (best expert) of item n.
template <class T, class B>
struct PriorityOfItem {
  Index picks;
  View<const T, 2, B> q;
  View<const Index, 1, B> expert;
  View<T, 1, B> priority;
  GATEFOLD_HD void operator()(Index n) const { priority(n) = q(n, chosen(expert(n * picks))); }
};
/// Returns whether pick a gets a place at its expert before pick b. First choices of items come before second choices.
/// Among first (or second) choices, the item with the larger priority comes first. Ties go to the lower item.
template <class T, class B>
struct HigherPriority {
  Index items, picks;
  View<const T, 1, B> priority;
  GATEFOLD_HD bool operator()(Index a, Index b) const {
    if (a / items != b / items) return a / items < b / items;
    return ranks_before(priority(a % items), a, priority(b % items), b);
  }
};
/// Drops the picks of list l that exceed the capacity of its expert. Each list contains the picks of one expert in one
/// group of items.
template <class T, class B>
struct DropOverflow {
  HigherPriority<T, B> before;
  bool batch_priority;
  Index experts;
  View<const Index, 1, B> offsets, room;
  View<Index, 1, B> order, expert;

  GATEFOLD_HD void operator()(const auto& lanes, Index l) const {
    const Index begin = offsets(l), count = offsets(l + 1) - begin, most = room(l / experts);
    if (count <= most || lanes.lane > 0) return;
    Index* list = order.data() + begin;
    if (batch_priority) heap_sort(list, count, before);
    for (Index i = most; i < count; ++i) {
      const Index p = list[i] % before.items * before.picks + list[i] / before.items;
      expert(p) = ~expert(p);
    }
  }
};
/// Renormalises the weights of item n, equation (2) of Capacity. If the item has no dropped pick, or its kept weights
/// sum to 0, its weights do not change and factor[n] = 1.
template <class T, class B>
struct Renormalise {
  Index picks;  // number of picks of an item
  View<const Index, 1, B> expert;
  View<T, 1, B> weight, factor;
  GATEFOLD_HD void operator()(Index n) const {
    T all = 0, kept = 0;
    bool dropped = false;
    for (Index p = n * picks; p < (n + 1) * picks; ++p) {
      all += weight(p);
      if (expert(p) >= 0) kept += weight(p);
      dropped = dropped || expert(p) < 0;
    }
    factor(n) = dropped && kept > 0 ? all / kept : T(1);
    for (Index p = n * picks; p < (n + 1) * picks && factor(n) != 1; ++p)
      if (expert(p) >= 0) weight(p) *= factor(n);
  }
};
/// Backward pass of the renormalisation (2) of Capacity for item n. Let w be the weight of a kept pick after (2), w̄
/// the gradient of the loss by w (`dweight`), and r the factor in (2). A = Σ w and s = Σ w̄ w are sums over the kept
/// picks. The gradient of a weight before (2) is r (w̄ − s / A) + s / A for a kept pick, and s / A for a dropped pick.
/// If r = 1, these gradients are w̄ and 0.
template <class T, class B>
struct RenormaliseBackward {
  Index picks;
  View<const Index, 1, B> expert;
  View<const T, 1, B> weight, factor, dweight;
  View<T, 1, B> before;
  GATEFOLD_HD void operator()(Index n) const {
    T total = 0, dot = 0;
    for (Index p = n * picks; p < (n + 1) * picks; ++p) {
      if (expert(p) < 0) continue;
      total += weight(p);
      dot += weight(p) * dweight(p);
    }
    const bool changed = factor(n) != 1 && total > 0;
    const T mean = changed ? dot / total : T(0);
    for (Index p = n * picks; p < (n + 1) * picks; ++p) {
      if (expert(p) < 0) {
        before(p) = mean;
      } else {
        before(p) = changed ? factor(n) * (dweight(p) - mean) + mean : dweight(p);
      }
    }
  }
};

}  // namespace functor

template <class SelectionT>
Index Capacity<SelectionT>::room(Index items, Index picks, Index experts) const {
  return functor::CapacityRule{factor, multiple_of, slots, picks, experts}(items);
}

}  // namespace gatefold
