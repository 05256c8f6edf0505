#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/routing/sequence.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "gatefold/tensor/tensor.hpp"

/// A gate that sees the batch of all shards as if it were one. Host backends.
namespace gatefold::dist {

/// Scores whose items are the logits: somebody else computed them.
///
///     z = x                                                                                             (1)
struct GivenScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    copy(ctx, x, z);
  }
  /// Adds to dx.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    add(ctx, dz, dx);
  }
};

/// True for a selection that reads logits and probabilities of the candidates and never the items, and learns nothing.
/// Yours may say so by a specialisation.
template <class SelectionT>
inline constexpr bool reads_logits_alone = false;
template <>
inline constexpr bool reads_logits_alone<TopK> = true;
template <>
inline constexpr bool reads_logits_alone<Dense> = true;
template <>
inline constexpr bool reads_logits_alone<ExpertChoice> = true;
template <>
inline constexpr bool reads_logits_alone<ScheduledTopK> = true;
template <class LawT>
inline constexpr bool reads_logits_alone<NoisyTop1<LawT>> = true;
template <class SelectionT>
inline constexpr bool reads_logits_alone<Capacity<SelectionT>> = reads_logits_alone<SelectionT>;

/// True for a gate that routes an item by itself, whatever the others are: it stays with its items.
template <class GateT>
inline constexpr bool routes_alone = std::same_as<GateT, HashGate>;

namespace global {

/// How much of a gate needs the other shards' items.
enum class Sees {
  own,     // nothing: items, or sequences of them (Soft MoE), that never meet
  logits,  // selection and losses: items are scored where they are, and their logits gathered
  items    // all of it: the items are gathered, and every shard routes all of them
};

template <class GateT>
struct Parts {
  static constexpr bool composed = false;
};
template <class S, class M, class Sel, class... A>
struct Parts<ComposedGate<S, M, Sel, A...>> {
  static constexpr bool composed = true;
  using OfLogits = ComposedGate<GivenScores, M, Sel, A...>;
  /// Nothing after the scores needs the items.
  template <class T, class B>
  static constexpr bool by_logits = !named::Extra<S>() && hook::mixing::rows<M, T, B>() &&
                                    std::same_as<Params<M, T, B>, Nothing<T, B>> && reads_logits_alone<Sel>;
};

template <class GateT, class T, class B>
constexpr Sees sees() {
  if constexpr (routes_alone<GateT> || !std::same_as<Plan<GateT, T, B>, SparsePlan<T, B>>) {
    return Sees::own;
  } else if constexpr (Parts<GateT>::composed) {
    return Parts<GateT>::template by_logits<T, B> ? Sees::logits : Sees::items;
  } else {
    return Sees::items;
  }
}
template <class GateT, class T, class B>
struct Inner {
  using Type = GateT;
};
template <class GateT, class T, class B>
requires(sees<GateT, T, B>() == Sees::logits) struct Inner<GateT, T, B> {
  using Type = typename Parts<GateT>::OfLogits;
};

}  // namespace global

/// The gate of a mixture whose items lie on several shards, in their order: item n of shard i is item n + Σ_{j<i} N_j
/// of the batch.
///
/// Linear scores, or others without extra inputs, before a selection that reads logits alone (TopK, ExpertChoice,
/// Capacity, …) are computed where the items are, and their logits [N, E] gathered. Any other gate is given the items
/// of all shards, and every shard routes all of them. Either way plan and auxiliary losses are those of one process.
/// Its padding is `extra.valid` of the gate; `extra` is otherwise the same on all shards. A gate with a plan of its own
/// (SoftMoe) and one that routes_alone stay on their shard, where their sequences must lie.
/// @cost  logits: N·E values gathered, and the selection of N items; items: N·D values, and the gate for N items
template <class GateT, class T, class B>
struct GlobalGate {
  static constexpr global::Sees sees = global::sees<GateT, T, B>();
  static_assert(
      std::same_as<gatefold::WithoutTrace<Extra<GateT, T, B>>, Extra<GateT, T, B>>,
      "gatefold: a gate that follows an attention (AttentionAware) sees its own shard's only, and cannot be that of an "
      "ExpertParallel; see docs/distributed.md");
  using Inner = typename global::Inner<GateT, T, B>::Type;

  struct Saved {
    Plan<GateT, T, B> plan;  // of all shards' items, unless they never meet
    gatefold::Saved<Inner, T, B> gate;
    std::vector<Index> items{};            // of each shard
    Tensor<T, 2, B> seen;                  // [N, E] logits or [N, D] items of all shards
    std::array<Tensor<T, 1, B>, 3> masks;  // [N] or empty: the gate's padding, its mixing's, its selection's
    SparsePlan<T, B> own_part;             // this shard's picks
    std::vector<Index> picks{};            // their numbers in `plan`

    /// The plan of this shard's items.
    auto& own() {
      if constexpr (sees == global::Sees::own) {
        return plan;
      } else {
        return own_part;
      }
    }
    const auto& own() const { return const_cast<Saved&>(*this).own(); }
  };

  template <class ShardT>
  static void forward(const GateT& gate, ShardT& shard, typename B::Context& ctx, const Params<GateT, T, B>& p,
                      In<T, 2, B> x, Saved& saved, const Extra<GateT, T, B>& extra) {
    if constexpr (sees == global::Sees::own) {
      gate.forward(ctx, p, x, saved.plan, saved.gate, extra);
    } else {
      count_items(shard, x.extent(0), extra, saved);
      if constexpr (sees == global::Sees::logits) {
        auto mark = ctx.mark();
        auto z = ctx.template scratch<T>(x.extent(0), gate.experts());
        gate.scores.forward(ctx, p.scores, without_padding<T, B>(ctx, x, extra.valid), z);
        gather(shard, z, saved);
      } else {
        gather(shard, x, saved);
      }
      with_inner(gate, p, saved, extra, [&](const auto& inner, const auto& params, const auto& all) {
        if constexpr (hook::gate::validate<Inner, T, B>()) inner.validate(params, saved.seen.extent(0), all);
        inner.forward(ctx, params, saved.seen, saved.plan, saved.gate, all);
      });
      take_own(ctx, first_item(shard, saved), x.extent(0), saved);
    }
  }

  /// @param dplan  of saved.own(). Adds to dx and, each shard its part of them, to grads
  template <class ShardT>
  static void backward(const GateT& gate, ShardT& shard, typename B::Context& ctx, const Params<GateT, T, B>& p,
                       In<T, 2, B> x, const Saved& saved, const typename Plan<GateT, T, B>::Grad& dplan,
                       Out<T, 2, B> dx, Params<GateT, T, B>& grads, const Extra<GateT, T, B>& extra,
                       ExtraGrad<GateT, T, B>& dextra) {
    if constexpr (sees == global::Sees::own) {
      gate.backward(ctx, p, x, saved.plan, saved.gate, dplan, dx, grads, extra, dextra);
    } else {
      auto mark = ctx.mark();
      auto dall = saved.plan.grad(ctx);
      for (std::size_t i = 0; i < saved.picks.size(); ++i)
        dall.weight(saved.picks[i]) = dplan.weight(static_cast<Index>(i));
      auto dseen = ctx.template scratch<T>(saved.seen.extent(0), saved.seen.extent(1));
      fill(ctx, dseen, 0);
      with_inner(gate, p, saved, extra, [&](const auto& inner, const auto& params, const auto& all) {
        gatefold::ExtraGrad<Inner, T, B> unused{};
        if constexpr (sees == global::Sees::logits) {  // a row's adjoint depends on that item's weights alone
          gatefold::Params<Inner, T, B> none{};
          inner.backward(ctx, params, saved.seen, saved.plan, saved.gate, dall, dseen, none, all, unused);
          gate.scores.backward(ctx, p.scores, without_padding<T, B>(ctx, x, extra.valid),
                               dseen.rows(first_item(shard, saved), x.extent(0)), dx, grads.scores);
        } else {
          shard.sum(dall.weight.data(), dall.weight.size());
          // Every shard finds the gradient of the whole batch; the first one has it.
          auto others = ctx.template acquire<gatefold::Params<GateT, T, B>>();
          if (shard.index() > 0) {
            shape_like(*others, grads);
            set_zero(ctx, *others);
          }
          const View<T, 2, B> own = dseen.rows(first_item(shard, saved), dx.extent(0));
          copy(ctx, dx, own);  // in the order of one process: the gate adds to what came from the experts
          inner.backward(ctx, params, saved.seen, saved.plan, saved.gate, dall, dseen,
                         shard.index() == 0 ? grads : *others, all, unused);
          copy(ctx, own, dx);
        }
      });
    }
  }

 private:
  template <class ShardT>
  static Index first_item(const ShardT& shard, const Saved& saved) {
    Index first = 0;
    for (Index j = 0; j < shard.index(); ++j) first += saved.items[static_cast<std::size_t>(j)];
    return first;
  }
  /// f(gate, parameters, extra) of the gate of all items.
  template <class F>
  static void with_inner(const GateT& gate, const Params<GateT, T, B>& p, const Saved& saved,
                         const Extra<GateT, T, B>& extra, const F& f) {
    auto all = extra;
    each_mask(all, [&](View<const T, 1, B>& mask, std::size_t i) { mask = saved.masks[i]; });
    if constexpr (sees == global::Sees::logits) {
      const Inner inner{{gate.experts()}, gate.mixing, gate.selection, gate.auxiliary};
      f(inner, Params<Inner, T, B>{},
        gatefold::Extra<Inner, T, B>{{}, all.mixing, all.selection, all.valid, all.count_auxiliary});
    } else {
      f(gate, p, all);
    }
  }
  /// f(mask, number) of every padding mask of extra inputs.
  template <class E, class F>
  static void each_mask(E& extra, const F& f) {
    const auto one = [&](auto& of, std::size_t i) {
      if constexpr (requires { of.valid; }) f(of.valid, i);
    };
    one(extra, 0);
    if constexpr (requires { extra.mixing, extra.selection; }) {
      one(extra.mixing, 1);
      one(extra.selection, 2);
    }
  }
  /// How many items each shard has, and which of them are padding.
  template <class ShardT>
  static void count_items(ShardT& shard, Index items, const Extra<GateT, T, B>& extra, Saved& saved) {
    constexpr Index width = 4;
    Index told[width] = {items};
    each_mask(extra, [&](const View<const T, 1, B>& mask, std::size_t i) {
      told[1 + i] = mask.data() != nullptr;
      if (mask.data()) expect_shape("ExpertParallel.forward", "extra.valid", mask, {items});
    });
    std::vector<Index> heard(static_cast<std::size_t>(width * shard.count()));
    shard.all_gather(told, width, heard.data());
    saved.items.clear();
    for (std::size_t j = 0; j < heard.size(); j += width) saved.items.push_back(heard[j]);
    const Index total = std::accumulate(saved.items.begin(), saved.items.end(), Index(0));
    each_mask(extra, [&](const View<const T, 1, B>& mask, std::size_t i) {
      Index with_items = 0, masks = 0;
      for (std::size_t j = 0; j < heard.size(); j += width) {
        with_items += heard[j] > 0;
        masks += heard[j] > 0 && heard[j + 1 + i];
      }
      expect(masks == 0 || masks == with_items, "ExpertParallel.forward", "extra.valid",
             "a mask on all shards that have items, or on none", Joined{"one on ", masks});
      saved.masks[i].resize(masks > 0 ? total : 0);
      if (masks > 0) shard.template all_gather<T>(mask.data(), saved.items, saved.masks[i].data());
    });
    saved.seen.resize(total, 0);
  }
  template <class ShardT>
  static void gather(ShardT& shard, View<const T, 2, B> mine, Saved& saved) {
    saved.seen.resize(saved.seen.extent(0), mine.extent(1));
    std::vector<Index> counts = saved.items;
    for (Index& n : counts) n *= mine.extent(1);
    shard.template all_gather<T>(mine.data(), counts, saved.seen.data());
  }
  /// The picks of items [first, first + count), in their order.
  static void take_own(typename B::Context& ctx, Index first, Index count, Saved& saved) {
    const auto& all = saved.plan;
    saved.picks.clear();
    for (Index p = 0; p < all.item.size(); ++p)
      if (all.expert(p) != no_pick && first <= all.item(p) && all.item(p) < first + count) saved.picks.push_back(p);
    auto& own = saved.own_part;
    own.resize(count, all.experts(), static_cast<Index>(saved.picks.size()));
    for (std::size_t i = 0; i < saved.picks.size(); ++i) {
      const Index p = saved.picks[i], to = static_cast<Index>(i);
      own.item(to) = all.item(p) - first;
      own.expert(to) = all.expert(p);
      own.weight(to) = all.weight(p);
    }
    own.build(ctx);
  }
};

}  // namespace gatefold::dist
