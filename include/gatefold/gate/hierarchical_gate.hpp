#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gatefold/gate/composed_gate.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), MarkGroup, PickInGroup, PickInGroupBackward);

/// A gate with two levels (hierarchical mixture of experts): a primary gate chooses groups of experts, and each group
/// has a secondary gate that chooses among its M experts. The weights are multiplied.
///
///     w[n, g·M + e] = v[n,g] · w_g[n,e],   v from the primary gate, w_g from the secondary gate of group g     (1)
///
/// Expert e of group g is expert g·M + e of the mixture, so the grouped products of the mixture compute the experts of
/// all groups together. For the secondary gate of a group, items that the primary gate did not send to the group are
/// padding: they get no experts of the group, take no capacity, and do not count in auxiliary losses. If a secondary
/// gate draws random numbers, each group has a separate random stream. `dropped` of metric::load(ctx, plan) is the
/// number of picks that a secondary gate dropped. For the picks that the primary gate dropped, pass
/// `saved.primary.plan` to metric::load.
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538, appendix B, eq. (12); with SoftmaxDense for both gates Jordan and
/// Jacobs 1994, "Hierarchical mixtures of experts and the EM algorithm".
/// @param primary    the gate over groups, for example SoftmaxTopK. Its plan (list of picks) must be a SparsePlan
/// @param secondary  the options of the gates of all groups: a ComposedGate with picks in the order of the items (not
///         ExpertChoice). Its number of experts is M
/// @param extra  `.primary` and `.secondary` have the extra inputs of the gates, `.valid` [N] the mask of padding
/// @throws ArgumentError unless both gates have at least one expert, `params.secondary` has one pack per group, and
///         `extra.valid` is empty or [N]. Also in the cases in which one of the gates throws
/// @cost   the primary gate, and for each group the secondary gate on N items and a copy [N, D] of the items; S =
///         (picks of the primary gate) · (picks of a secondary gate per item)
/// @order  ties as in each of the two gates; the outputs of an item's experts are added by ascending expert
template <class PrimaryT, class SecondaryT>
struct HierarchicalGate {
  PrimaryT primary{};
  SecondaryT secondary{};

  template <class T, class B>
  using Plan = SparsePlan<T, B>;

  template <class T, class B>
  struct Params {
    using GateOfGroups = SecondaryT;
    gatefold::Params<PrimaryT, T, B> primary;
    std::vector<gatefold::Params<SecondaryT, T, B>> secondary;  // one pack per group
    GATEFOLD_PACK(primary, secondary)
  };
  /// The picks of the primary gate, and the values that this gate saves for backward.
  template <class T, class B>
  struct Primary {
    gatefold::Plan<PrimaryT, T, B> plan;
    gatefold::Saved<PrimaryT, T, B> gate;
  };
  /// The picks of the secondary gate of one group, and the values that this gate saves for backward.
  template <class T, class B>
  struct Group {
    SparsePlan<T, B> plan;
    gatefold::Saved<SecondaryT, T, B> gate;
    Tensor<T, 1, B> valid;  // [N] 1 for an item of the group, 0 for all other items
  };
  template <class T, class B>
  struct Saved {
    Primary<T, B> primary;
    std::vector<Group<T, B>> groups;
    Tensor<T, 1, B> auxiliary;  // the auxiliary losses of the primary gate, then those of each group's gate
  };
  template <class T, class B>
  struct Extra {
    gatefold::Extra<PrimaryT, T, B> primary{};
    gatefold::Extra<SecondaryT, T, B> secondary{};
    View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: the mask of `primary`, if it has one
  };
  template <class T, class B>
  struct ExtraGrad {
    gatefold::ExtraGrad<PrimaryT, T, B> primary;
    gatefold::ExtraGrad<SecondaryT, T, B> secondary;
  };

  Index groups() const { return count_experts(primary); }
  Index experts() const { return groups() * count_experts(secondary); }
  HierarchicalGate with_experts(Index count) const {
    expect(groups() >= 1 && count % groups() == 0, "HierarchicalGate", "groups",
           Joined{"a divisor of ", count, " (the number of experts in the other parts of the model)"}, groups());
    return {primary, gatefold::with_experts(secondary, count / groups())};
  }

  GATEFOLD_INIT(HierarchicalGate) {
    expect_groups();
    Params<T, B> p{init_params<T, B>(primary, ctx, seed.fork(0)), {}};
    for (Index g = 0; g < groups(); ++g)
      p.secondary.push_back(init_params<T, B>(secondary, ctx, seed.fork(1).fork(static_cast<std::uint64_t>(g))));
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    expect_groups();
    expect(static_cast<Index>(p.secondary.size()) == groups(), "HierarchicalGate", "params.secondary.size()",
           Joined{groups(), " (groups)"}, p.secondary.size());
    if (extra.valid.data()) expect_shape("HierarchicalGate", "extra.valid", extra.valid, {items});
    if constexpr (detail_::hook::gate::validate<PrimaryT, T, B>())
      primary.validate(p.primary, items, of_primary(extra));
    if constexpr (detail_::hook::gate::validate<SecondaryT, T, B>()) {
      auto inputs = extra.secondary;
      inputs.valid = {};  // replaced by the mask of each group
      for (const auto& of_group : p.secondary) secondary.validate(of_group, items, inputs);
    }
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Extra<T, B>& extra = {}) const {
    run<T, B, true>(ctx, p, x, plan, saved, extra);
    Index losses = auxiliary_of(saved.primary.gate).size();
    for (const auto& group : saved.groups) losses += auxiliary_of(group.gate).size();
    saved.auxiliary.resize(losses);
    Index first = 0;
    const auto append = [&](const auto& of_gate) {
      const View<const T, 1, B> values = auxiliary_of(of_gate);
      copy(ctx, values, saved.auxiliary.view().rows(first, values.size()));
      first += values.size();
    };
    append(saved.primary.gate);
    for (const auto& group : saved.groups) append(group.gate);
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, SparsePlan<T, B>& plan,
             const Extra<T, B>& extra = {}) const {
    auto discarded = ctx.template acquire<Saved<T, B>>();
    run<T, B, false>(ctx, p, x, plan, *discarded, extra);
  }

  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const SparsePlan<T, B>& plan,
                const Saved<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dx,
                Params<T, B>& grads, const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    expect(static_cast<Index>(saved.groups.size()) == groups(), "HierarchicalGate.backward", "saved.groups.size()",
           groups(), saved.groups.size());
    auto mark = ctx.mark();
    const auto& first = saved.primary.plan;
    auto dprimary = first.grad(ctx);
    for (Index g = 0; g < groups(); ++g) {
      auto inner = ctx.mark();
      const auto& group = number(saved.groups, g);
      auto dgroup = group.plan.grad(ctx);
      B::for_each(ctx, first.expert.size(),
                  functor::PickInGroupBackward<T, B>{g, picks_of_item(group.plan), first.item, first.expert,
                                                     plan.expert, first.weight, group.plan.weight, dplan.weight,
                                                     dprimary.weight, dgroup.weight});
      secondary.backward(ctx, number(p.secondary, g), x, group.plan, group.gate, dgroup, dx, number(grads.secondary, g),
                         of_group(extra, group, g), dextra.secondary);
    }
    primary.backward(ctx, p.primary, x, first, saved.primary.gate, dprimary, dx, grads.primary, of_primary(extra),
                     dextra.primary);
  }

 private:
  template <class T, class B, bool training>
  void run(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, SparsePlan<T, B>& plan, Saved<T, B>& saved,
           const Extra<T, B>& extra) const {
    const Index items = x.extent(0), each = count_experts(secondary);
    validate(p, items, extra);
    auto& first = saved.primary.plan;
    if constexpr (training) {
      primary.forward(ctx, p.primary, x, first, saved.primary.gate, of_primary(extra));
    } else {
      infer_gate<T, B>(primary, ctx, p.primary, x, first, of_primary(extra));
    }
    const Index picks = first.expert.size();
    saved.groups.resize(static_cast<std::size_t>(groups()));
    for (Index g = 0; g < groups(); ++g) {
      auto& group = number(saved.groups, g);
      group.valid.resize(items);
      fill(ctx, group.valid, 0);
      B::for_each(ctx, picks, functor::MarkGroup<T, B>{g, first.item, first.expert, group.valid});
      const auto inputs = of_group(extra, group, g);
      if constexpr (training) {
        secondary.forward(ctx, number(p.secondary, g), x, group.plan, group.gate, inputs);
      } else {
        infer_gate<T, B>(secondary, ctx, number(p.secondary, g), x, group.plan, inputs);
      }
      const Index of_item = picks_of_item(group.plan);
      if (g == 0) {
        plan.resize(items, experts(), picks * of_item);
        fill(ctx, plan.item, 0);
        fill(ctx, plan.expert, no_pick);
        fill(ctx, plan.weight, 0);
      }
      B::for_each(ctx, picks * of_item,
                  functor::PickInGroup<T, B>{g, each, of_item, first.item, first.expert, group.plan.expert,
                                             first.weight, group.plan.weight, plan.item, plan.expert, plan.weight});
    }
    plan.build(ctx);
  }
  /// Returns the extra inputs of the primary gate, with the mask of padding.
  template <class T, class B>
  static gatefold::Extra<PrimaryT, T, B> of_primary(const Extra<T, B>& extra) {
    auto inputs = extra.primary;
    if constexpr (requires { inputs.valid = extra.valid; })
      if (extra.valid.data()) inputs.valid = extra.valid;
    return inputs;
  }
  /// Returns the extra inputs of the secondary gate of group g. Items outside the group are padding.
  template <class T, class B>
  static gatefold::Extra<SecondaryT, T, B> of_group(const Extra<T, B>& extra, const Group<T, B>& group, Index g) {
    auto inputs = at_layer(extra.secondary, g);
    inputs.valid = group.valid;
    return inputs;
  }
  template <class T, class B>
  static Index picks_of_item(const SparsePlan<T, B>& plan) {
    return plan.items() > 0 ? plan.expert.size() / plan.items() : 0;
  }
  /// Returns the auxiliary losses that a gate has saved, or an empty view if it has none.
  template <template <class, class> class SavedT, class T, class B>
  static View<const T, 1, B> auxiliary_of(const SavedT<T, B>& of_gate) {
    if constexpr (requires { of_gate.auxiliary.view(); }) {
      return of_gate.auxiliary.view();
    } else {
      return {};
    }
  }
  template <class V>
  static auto& number(V& vector, Index g) {
    return vector[static_cast<std::size_t>(g)];
  }
  void expect_groups() const {
    expect(groups() >= 1, "HierarchicalGate", "primary: experts (the groups)", "at least 1", groups());
    expect(count_experts(secondary) >= 1, "HierarchicalGate", "secondary: experts", "at least 1",
           count_experts(secondary));
  }
};
template <class P, class S>
HierarchicalGate(P, S) -> HierarchicalGate<P, S>;

namespace detail_::policy {

template <class PrimaryT, class SecondaryT>
struct Parts<HierarchicalGate<PrimaryT, SecondaryT>> {
  template <class T, class B>
  static constexpr bool check() {
    if constexpr (check_gate<PrimaryT, T, B>() && check_gate<SecondaryT, T, B>()) {
      constexpr bool by_item = requires {
        typename SecondaryT::Selection;
        requires detail_::hook::selection::picks_by_item<typename SecondaryT::Selection>();
      };
      GATEFOLD_EXPECT((std::is_same_v<Plan<PrimaryT, T, B>, SparsePlan<T, B>> && by_item),
                      "gatefold: the primary gate of a HierarchicalGate must write a SparsePlan (not SoftMoe), and the "
                      "secondary gate must be a ComposedGate with picks in the order of the items (not ExpertChoice); "
                      "see docs/how-to/routers.md#groups-of-experts")
      return true;
    } else {
      return false;
    }
  }
};

}  // namespace detail_::policy

namespace functor {

/// Writes 1 to valid[n] of each item n that the primary gate sends to group g.
template <class T, class B>
struct MarkGroup {
  Index group;
  View<const Index, 1, B> item, chosen_group;
  View<T, 1, B> valid;
  GATEFOLD_HD void operator()(Index j) const {
    if (chosen_group(j) == group) valid(item(j)) = T(1);
  }
};
/// Writes the picks of the mixture that belong to group g of a HierarchicalGate. Pick j·K + i of the mixture combines
/// pick j of the primary gate with pick i of the same item in the secondary gate, which has K picks per item. If the
/// secondary gate has dropped its pick, the combined pick is dropped too.
template <class T, class B>
struct PickInGroup {
  Index group, experts, of_item;                     // experts: number of experts of a group; of_item: K
  View<const Index, 1, B> first_item, chosen_group;  // picks of the primary gate
  View<const Index, 1, B> chosen_expert;             // picks of the secondary gate
  View<const T, 1, B> group_weight, expert_weight;
  View<Index, 1, B> item, expert;
  View<T, 1, B> weight;
  GATEFOLD_HD void operator()(Index p) const {
    const Index j = p / of_item;
    if (chosen_group(j) != group) return;
    const Index i = first_item(j) * of_item + p % of_item, e = chosen_expert(i);
    item(p) = first_item(j);
    weight(p) = group_weight(j) * expert_weight(i);
    if (e != no_pick) expert(p) = e >= 0 ? group * experts + e : ~(group * experts + chosen(e));
  }
};
/// Backward pass of PickInGroup for pick j of the primary gate. Adds to the gradient of the weight of this pick, and
/// writes the gradients of the item's weights in the secondary gate.
template <class T, class B>
struct PickInGroupBackward {
  Index group, of_item;
  View<const Index, 1, B> first_item, chosen_group;
  View<const Index, 1, B> expert;  // experts of the combined picks
  View<const T, 1, B> group_weight, expert_weight, dweight;
  View<T, 1, B> dgroup_weight, dexpert_weight;
  GATEFOLD_HD void operator()(Index j) const {
    if (chosen_group(j) != group) return;
    T sum = 0;
    for (Index k = 0; k < of_item; ++k) {
      const Index i = first_item(j) * of_item + k, p = j * of_item + k;
      if (expert(p) < 0) continue;
      sum += dweight(p) * expert_weight(i);
      dexpert_weight(i) = dweight(p) * group_weight(j);
    }
    dgroup_weight(j) += sum;
  }
};

}  // namespace functor

}  // namespace gatefold
