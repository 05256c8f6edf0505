#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/gate_needs.hpp"

/// A gate (router) that routes the items of all shards as one batch.
namespace gatefold {

namespace functor {

/// A functor for rows that does nothing.
struct NoRow {
  template <class Lanes, class T>
  GATEFOLD_HD void operator()(const Lanes&, Index, T*) const {}
};

}  // namespace functor

namespace dist {

template <class T, class B>
void take_picks(typename B::Context& ctx, const SparsePlan<T, B>& all, Index first, Index count,
                Tensor<Index, 1, B>& picks, SparsePlan<T, B>& own);
template <class T, class B>
void give_picks(typename B::Context& ctx, View<const Index, 1, B> picks, View<const T, 1, B> own, View<T, 1, B> all);

/// The gate of a mixture whose items are on several shards. The shards are in order: item n of shard i is item n +
/// Σ_{j<i} N_j of the batch, with N_j items on shard j.
///
/// Where the gate is computed depends on its parts:
/// - Scores are computed on the shards of the items, and the logits [N, E] are gathered, if three conditions hold. The
///   scores have no extra inputs, for example linear scores. The selection reads only logits (TopK, ExpertChoice,
///   Capacity, …). There is no mixing, or a mixing without parameters that works on single rows.
/// - A mixing with mixes_within_sequences (similarity- and attention-aware gates) is also computed on the shards of the
///   items, if the first two conditions hold. Each sequence must be on one shard. Logits, ranks and probabilities are
///   gathered.
/// - A gate whose plan is not a SparsePlan (SoftMoe, WeightOnInput), and a gate with routes_alone, routes only the
///   items of its shard. Each sequence must be on one shard.
/// - For any other gate the items of all shards are gathered, and every shard routes all of them.
///
/// The plan and the auxiliary losses are the same as in one process. Pass padding masks and an attention trace for this
/// shard's items. Noise, k, length, tau and the stage of a DistilledTop1 must be the same on all shards.
/// @cost   for N items on all shards together: if logits are gathered, transfers of N·E values (3·N·E for a gate with
///         mixes_within_sequences), and the selection for N items on every shard. If items are gathered, transfers of
///         N·D values, the gate for N items on every shard, and in backward a Shard::sum of one number for each pick
template <class GateT, class T, class B>
struct GlobalGate {
  static constexpr global::Sees sees = global::sees<GateT, T, B>();
  GATEFOLD_REQUIRE((sees == global::Sees::mixed || sees == global::Sees::own ||
                    std::same_as<gatefold::WithoutTrace<Extra<GateT, T, B>>, Extra<GateT, T, B>>),
                   "gatefold: an AttentionAware gate in an ExpertParallel needs scores without extra inputs (no "
                   "Jitter) and a selection that reads only logits (TopK); see docs/how-to/distributed.md");
  using Inner = typename global::Inner<GateT, T, B>::Type;

  struct Saved {
    /// The plan (chosen experts) of the items of all shards. If the gate routes each shard separately, the plan of this
    /// shard.
    Plan<GateT, T, B> plan;
    gatefold::Saved<Inner, T, B> gate;
    std::vector<Index> items{};  // number of items of each shard
    typename global::Inner<GateT, T, B>::Mixed mixed;
    /// The gathered input of the inner gate: [N, E] logits, [N, 3 E] MixedRows (logits, ranks, probabilities), or [N,
    /// D] items of all shards.
    Tensor<T, 2, B> seen;
    std::array<Tensor<T, 1, B>, 3> masks;  // [N] masks of padding for gate, mixing and selection; empty if not given
    // The whole numbers of the selection's extra inputs: [1, N·K] recorded experts (ReplayTopK), or [1, N] ids
    // (DistilledTop1); empty for other selections.
    Tensor<Index, 2, B> numbers;
    SparsePlan<T, B> own_part;  // this shard's picks
    Tensor<Index, 1, B> picks;  // positions of this shard's picks in `plan`

    /// Returns the plan (the chosen experts and their weights) for this shard's items.
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
      if constexpr (!routes_alone<GateT>) expect_lengths(shard, extra);
      gate.forward(ctx, p, x, saved.plan, saved.gate, extra);
    } else {
      count_items(shard, ctx, x.extent(0), extra, saved);
      if constexpr (sees == global::Sees::logits) {
        auto mark = ctx.mark();
        auto z = ctx.template scratch<T>(x.extent(0), count_experts(gate));
        score(gate.scores, ctx, p.scores, without_padding<T, B>(ctx, x, extra.valid), z);
        gather(shard, ctx, z, saved);
      } else if constexpr (sees == global::Sees::mixed) {
        auto mark = ctx.mark();
        gather(shard, ctx, mix(gate, shard, ctx, p, without_padding<T, B>(ctx, x, extra.valid), saved.mixed, extra),
               saved);
      } else {
        gather(shard, ctx, x, saved);
      }
      with_inner(gate, p, saved, extra, [&](const auto& inner, const auto& params, const auto& all) {
        if constexpr (detail_::hook::gate::validate<Inner, T, B>()) inner.validate(params, saved.seen.extent(0), all);
        inner.forward(ctx, params, saved.seen, saved.plan, saved.gate, all);
      });
      take_picks<T, B>(ctx, saved.plan, first_item(shard, saved), x.extent(0), saved.picks, saved.own_part);
    }
  }

  /// Adds the gradient of this shard's items to dx, and this shard's part of the gradient of the gate's parameters to
  /// grads. The parts of all shards add up to the whole gradient. If all items are gathered, the part of shard 0 is the
  /// whole gradient, and the parts of other shards are 0.
  /// @param dplan  the gradient of saved.own(), the plan of this shard's items
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
      give_picks<T, B>(ctx, saved.picks, dplan.weight, dall.weight);
      auto dseen = ctx.template scratch<T>(saved.seen.extent(0), saved.seen.extent(1));
      fill(ctx, dseen, 0);
      with_inner(gate, p, saved, extra, [&](const auto& inner, const auto& params, const auto& all) {
        gatefold::ExtraGrad<Inner, T, B> unused{};
        // This branch needs no shard.sum of dall, because row n of `seen` affects only the weights of item n.
        if constexpr (sees != global::Sees::items) {
          gatefold::Params<Inner, T, B> none{};
          inner.backward(ctx, params, saved.seen, saved.plan, saved.gate, dall, dseen, none, all, unused);
          const View<const T, 2, B> clean = without_padding<T, B>(ctx, x, extra.valid);
          View<T, 2, B> dz = dseen.rows(first_item(shard, saved), x.extent(0));
          if constexpr (sees == global::Sees::mixed)
            dz = mix_backward(gate, ctx, p, clean, saved.mixed, dz, dx, grads, extra, dextra);
          gate.scores.backward(ctx, p.scores, clean, dz, dx, grads.scores);
        } else {
          shard.sum(ctx, dall.weight.data(), dall.weight.size());
          // Every shard computes the gradient of the gate's parameters for the whole batch. Only shard 0 keeps it,
          // because the gradients of all shards are added later.
          auto others = ctx.template acquire<gatefold::Params<GateT, T, B>>();
          if (shard.index() > 0) {
            shape_like(*others, grads);
            set_zero(ctx, *others);
          }
          const View<T, 2, B> own = dseen.rows(first_item(shard, saved), dx.extent(0));
          copy(ctx, dx, own);  // dx already holds the gradient of the experts; the gate adds to it
          inner.backward(ctx, params, saved.seen, saved.plan, saved.gate, dall, dseen,
                         shard.index() == 0 ? grads : *others, all, unused);
          copy(ctx, own, dx);
        }
      });
    }
  }

 private:
  template <class ShardT, class E>
  static void expect_length(const ShardT& shard, const char* name, const E& of) {
    if constexpr (requires { of.length; })
      expect(of.length > 0 || shard.count() == 1, "ExpertParallel.forward", name,
             "at least 1, because a sequence must not be split across shards", of.length);
  }
  template <class ShardT, class E>
  static void expect_lengths(const ShardT& shard, const E& extra) {
    expect_length(shard, "extra.length", extra);
    if constexpr (requires { extra.scores; }) expect_length(shard, "extra.scores.length", extra.scores);
    if constexpr (requires { extra.mixing; }) expect_length(shard, "extra.mixing.length", extra.mixing);
    if constexpr (requires { extra.selection; }) expect_length(shard, "extra.selection.length", extra.selection);
  }
  static Index first_item(const auto& shard, const Saved& saved) {
    Index first = 0;
    for (Index j = 0; j < shard.index(); ++j) first += saved.items[static_cast<std::size_t>(j)];
    return first;
  }
  /// Returns the mixing of a gate. If the mixing has no width (number of values per item), it gets the width from the
  /// scores.
  static auto mixing_of(const GateT& gate) {
    const Index width = item_width(gate.scores);
    return width > 0 ? with_model_dim(gate.mixing, width) : gate.mixing;
  }
  /// Computes scores and mixing for this shard's items. Returns logits, ranks and probabilities as MixedRows, in
  /// scratch memory.
  template <class ShardT, class MixedT>
  static View<const T, 2, B> mix(const GateT& gate, const ShardT& shard, typename B::Context& ctx,
                                 const Params<GateT, T, B>& p, In<T, 2, B> clean, MixedT& mixed,
                                 const Extra<GateT, T, B>& extra) {
    using Rows = MixedRows<T, B>;
    const Index items = clean.extent(0), experts = count_experts(gate);
    const auto mixing = mixing_of(gate);
    const auto own = with_valid(extra.mixing, extra.valid);
    expect_length(shard, "extra.mixing.length", own);
    if constexpr (detail_::hook::mixing::validate<typename GateT::Mixing, T, B>())
      mixing.validate(p.mixing, items, own);
    mixed.logits.resize(items, experts);
    mixed.probabilities.resize(items, experts);
    gate.scores.forward(ctx, p.scores, clean, mixed.logits);
    mixing.forward(ctx, p.mixing, clean, mixed.logits, mixed.probabilities, mixed.mixing, own);
    auto rows = ctx.template scratch<T>(items, Rows::parts * experts);
    Rows::put(ctx, mixed.logits, Rows::logits, rows, false);
    Rows::put(ctx, mixing.rank(std::as_const(mixed.logits).view(), mixed.mixing), Rows::rank, rows, false);
    Rows::put(ctx, mixed.probabilities, Rows::probabilities, rows, false);
    return rows;
  }
  /// Runs backward of the mixing. Returns the gradient of the logits, in scratch memory. Adds the other gradients to
  /// dx, grads and dextra.
  /// @param drows  the gradient of this shard's MixedRows (logits, ranks and probabilities)
  static View<T, 2, B> mix_backward(const GateT& gate, typename B::Context& ctx, const Params<GateT, T, B>& p,
                                    In<T, 2, B> clean, const auto& mixed, View<const T, 2, B> drows, Out<T, 2, B> dx,
                                    Params<GateT, T, B>& grads, const Extra<GateT, T, B>& extra,
                                    ExtraGrad<GateT, T, B>& dextra) {
    using Rows = MixedRows<T, B>;
    const auto array = [&] { return ctx.template scratch<T>(clean.extent(0), count_experts(gate)); };
    const View<T, 2, B> dgiven = array(), drank = array(), dq = array(), dz = array();
    Rows::take(ctx, drows, Rows::logits, dgiven);
    Rows::take(ctx, drows, Rows::rank, drank);
    Rows::take(ctx, drows, Rows::probabilities, dq);
    mixing_of(gate).backward(ctx, p.mixing, clean, mixed.logits, mixed.probabilities, mixed.mixing, drank, dq, dz, dx,
                             grads.mixing, with_valid(extra.mixing, extra.valid), dextra.mixing);
    add(ctx, dgiven, dz);
    return dz;
  }
  /// Computes the logits of this shard's items. On a device, calls forward_rows if the scores have this function,
  /// because the gate of a run with one process calls it too, and the bits must be the same. A row of this product does
  /// not depend on the number of rows.
  static void score(const auto& scores, typename B::Context& ctx, const auto& p, In<T, 2, B> x, Out<T, 2, B> z) {
    if constexpr (global::Parts<GateT>::template scores_rows<T, B>) {
      scores.forward_rows(ctx, p, x, z, functor::NoRow{});
    } else {
      scores.forward(ctx, p, x, z);
    }
  }
  /// Calls f(gate, parameters, extra) with the inner gate, which routes the items of all shards from the gathered
  /// values.
  static void with_inner(const GateT& gate, const Params<GateT, T, B>& p, const Saved& saved,
                         const Extra<GateT, T, B>& extra, const auto& f) {
    auto all = extra;
    each_mask(all, [&](View<const T, 1, B>& mask, std::size_t i) { mask = saved.masks[i]; });
    if constexpr (requires { all.selection.recorded; }) all.selection.recorded = saved.numbers;
    if constexpr (requires { all.selection.ids; }) all.selection.ids = {saved.numbers.data(), saved.numbers.size()};
    if constexpr (sees == global::Sees::logits) {
      const Inner inner{{count_experts(gate)}, gate.mixing, gate.selection, gate.auxiliary};
      f(inner, Params<Inner, T, B>{},
        gatefold::Extra<Inner, T, B>{{}, all.mixing, all.selection, all.valid, all.count_auxiliary});
    } else if constexpr (sees == global::Sees::mixed) {
      const Inner inner{{count_experts(gate)}, {}, gate.selection, gate.auxiliary};
      f(inner, Params<Inner, T, B>{},
        gatefold::Extra<Inner, T, B>{{}, {}, all.selection, all.valid, all.count_auxiliary});
    } else {
      f(gate, p, all);
    }
  }
  /// Calls f(mask, number) for the padding masks in the extra inputs of a gate: 0 is the gate's own mask, 1 the mask of
  /// the mixing, 2 the mask of the selection.
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
  /// Returns the whole numbers in the extra inputs of the selection of a gate: the recorded experts of a ReplayTopK, or
  /// the ids of a DistilledTop1. Returns an empty view for other gates.
  template <class E>
  static View<const Index, 1, B> numbers_of(const E& extra) {
    if constexpr (requires { extra.selection.recorded; }) {
      return {extra.selection.recorded.data(), extra.selection.recorded.extent(1)};
    } else if constexpr (requires { extra.selection.ids; }) {
      return extra.selection.ids;
    } else {
      return {};
    }
  }
  /// Gathers from all shards the number of items, the padding masks, and the whole numbers of the selection
  /// (numbers_of).
  static void count_items(auto& shard, typename B::Context& ctx, Index items, const Extra<GateT, T, B>& extra,
                          Saved& saved) {
    constexpr std::size_t width = 6;
    const View<const Index, 1, B> numbers = numbers_of(extra);
    std::vector<Index> told{items, 0, 0, 0, static_cast<Index>(same::number_of_extra(extra)), numbers.size()};
    each_mask(extra, [&](const View<const T, 1, B>& mask, std::size_t i) {
      told[1 + i] = mask.data() != nullptr;
      if (mask.data()) expect_shape("ExpertParallel.forward", "extra.valid", mask, {items});
    });
    const std::vector<Index> heard = shard.all_gather(told);
    saved.items.clear();
    for (std::size_t j = 0; j < heard.size(); j += width) {
      expect(heard[j + 4] == heard[4], "ExpertParallel.forward", "extra",
             "the same noise, k, length and stage on all shards",
             Joined{"other values on shard ", j / width, " than on shard 0"});
      saved.items.push_back(heard[j]);
    }
    const Index total = std::accumulate(saved.items.begin(), saved.items.end(), Index(0));
    each_mask(extra, [&](const View<const T, 1, B>& mask, std::size_t i) {
      Index with_items = 0, masks = 0;
      for (std::size_t j = 0; j < heard.size(); j += width) {
        with_items += heard[j] > 0;
        masks += heard[j] > 0 && heard[j + 1 + i];
      }
      expect(masks == 0 || masks == with_items, "ExpertParallel.forward", "extra.valid",
             "a mask on all shards that have items, or on no shard", Joined{"a mask on ", masks, " of ", with_items});
      saved.masks[i].resize(masks > 0 ? total : 0);
      if (masks > 0) shard.all_gather(memory_of(ctx), mask.data(), saved.items, saved.masks[i].data());
    });
    if constexpr (
        requires { extra.selection.recorded; } || requires { extra.selection.ids; }) {
      std::vector<Index> counts;
      for (std::size_t j = 0; j < heard.size(); j += width) counts.push_back(heard[j + 5]);
      saved.numbers.resize(1, std::accumulate(counts.begin(), counts.end(), Index(0)));
      shard.all_gather(memory_of(ctx), numbers.data(), counts, saved.numbers.data());
    }
    saved.seen.resize(total, 0);
  }
  template <class ShardT>
  static void gather(ShardT& shard, typename B::Context& ctx, View<const T, 2, B> mine, Saved& saved) {
    saved.seen.resize(saved.seen.extent(0), mine.extent(1));
    std::vector<Index> counts = saved.items;
    for (Index& n : counts) n *= mine.extent(1);
    shard.all_gather(memory_of(ctx), mine.data(), counts, saved.seen.data());
  }
};

}  // namespace dist

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
