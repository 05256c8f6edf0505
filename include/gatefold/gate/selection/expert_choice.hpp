#pragma once

#include <algorithm>

#include "gatefold/backend/order.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), PickItems, PickItemsBackward);

namespace functor {

/// Returns the number of items that an expert takes from a sequence of `items` items: C in equation (1) of
/// ExpertChoice.
struct ChoiceCapacity {
  double factor;
  Index experts;
  GATEFOLD_HD Index operator()(Index items) const {
    const double even = static_cast<double>(items) * factor / static_cast<double>(experts) + 0.5;
    if (!(even < static_cast<double>(items))) return items;  // without this line, the cast below could overflow
    return even < 2 && items > 0 ? Index(1) : static_cast<Index>(even);
  }
};

}  // namespace functor

/// Lets every expert choose its C best items, instead of letting items choose experts.
///
///     C = L · factor / E,   G[e] = the C items n of a sequence with the largest q[n,e],   w[n,e] = q[n,e]          (1)
///
/// L is the length of a sequence. C is rounded to the nearest integer, halves up, and lies in 1 … L. Items are compared
/// by log q, which orders them even if q underflows. All experts have the same load. Several experts can take the same
/// item. If no expert takes an item, the mixture writes 0 for it. Padding is never taken and does not count in L.
///
/// ExpertChoice is not causal, because later items of the sequence can take the place of an item. A decoder that
/// generates item by item therefore routes differently than in training.
/// Source: Zhou et al. 2022, arXiv:2202.09368, eq. (1)-(2), without the limit of experts per item; the paper has factor
/// 2.
/// @param rank [N, E] in  logits or log-probabilities;  q [N, E] in  their softmax over the experts
/// @param extra  length of the sequences and padding; by default all items are one sequence
/// @throws ArgumentError unless factor > 0, the length of the sequences divides N, and `valid` is empty or [N]
/// @cost   N·E exponentials, 2·N·E·log₂ C comparisons at most, S = N/L · E · C picks
/// @order  ties go to the lower item; NaN ranks below every number; picks of an expert are distinct items, best first
struct ExpertChoice {
  static constexpr bool picks_by_item = false;
  double factor = 2;

  template <class T, class B>
  using Extra = Sequence<T, B>;

  /// Returns C, the number of items that an expert takes from a sequence of `items` items.
  Index room(Index items, Index experts) const { return functor::ChoiceCapacity{factor, experts}(items); }

  void validate_options(Index) const { expect(factor > 0, "ExpertChoice", "factor", "more than 0", factor); }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Sequence<T, B>& extra) const {
    extra.validate("ExpertChoice", items);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Sequence<T, B>& extra) const {
    const Sequence<T, B> sequence = extra.with_valid(c.valid);
    const Index items = c.q.extent(0), experts = c.q.extent(1), length = std::max<Index>(sequence.of(items), 1);
    validate_options(experts);
    validate(p, items, sequence);
    const Index lists = items / length * experts, most = room(length, experts);
    plan.resize(items, experts, lists * most);
    auto mark = ctx.mark();
    auto log_p = ctx.template scratch<T>(items, experts);
    B::for_rows(ctx, items, functor::LogSoftmax<T, B>{c.rank, log_p});
    B::for_rows(ctx, lists,
                functor::PickItems<T, B>{
                    log_p, c.q, sequence.valid, {factor, experts}, length, most, plan.item, plan.expert, plan.weight});
    plan.build(ctx);
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>&, const SparsePlan<T, B>& plan,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad& dplan, const CandidatesGrad<T, B>& d,
                Nothing<T, B>&, const Sequence<T, B>&) const {
    B::for_each(ctx, plan.expert.size(), functor::PickItemsBackward<T, B>{plan.item, plan.expert, dplan.weight, d.q});
  }
};

namespace functor {

/// Returns whether item a ranks before item b for expert e. The item with the larger log-probability ranks first.
template <class T, class B>
struct MoreProbable {
  View<const T, 2, B> log_p;
  Index e;
  GATEFOLD_HD bool operator()(Index a, Index b) const { return ranks_before(log_p(a, e), a, log_p(b, e), b); }
};
/// Writes the picks of list l, which are the items that one expert takes from one sequence, best first. If the sequence
/// has padding, the expert can take fewer items, and the rest of the list is then filled with dropped picks of padding.
template <class T, class B>
struct PickItems {
  View<const T, 2, B> log_p, q;
  View<const T, 1, B> valid;
  ChoiceCapacity room;
  Index length, most;  // number of items of a sequence, number of entries of a list
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;

  GATEFOLD_HD void operator()(const auto& lanes, Index l) const {
    if (lanes.lane > 0) return;
    const Index experts = q.extent(1), e = l % experts, first = l / experts * length;
    const MoreProbable<T, B> before{log_p, e};
    Index count = 0, padding = first;
    for (Index n = first; n < first + length; ++n) {
      const bool real = !valid.data() || valid(n) != 0;
      count += real;
      if (!real) padding = n;
    }
    Index* list = item.data() + l * most;
    Index held = 0;
    const Index places = room(count);
    for (Index n = first; n < first + length; ++n)
      if (!valid.data() || valid(n) != 0) offer(list, places, held, n, before);
    heap_sort(list, held, before);
    for (Index j = 0; j < most; ++j) {
      const Index p = l * most + j;
      if (j >= held) list[j] = padding;
      expert(p) = j < held ? e : ~e;
      weight(p) = j < held ? q(list[j], e) : T(0);
    }
  }
};
/// Adds the gradient of the weight of pick p to dq, unless the pick was dropped. Threads write different elements,
/// because no two picks have the same item and expert.
template <class T, class B>
struct PickItemsBackward {
  View<const Index, 1, B> item, expert;
  View<const T, 1, B> dweight;
  View<T, 2, B> dq;
  GATEFOLD_HD void operator()(Index p) const {
    if (expert(p) >= 0) dq(item(p), expert(p)) += dweight(p);
  }
};

}  // namespace functor

}  // namespace gatefold
