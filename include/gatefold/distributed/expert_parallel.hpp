#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "gatefold/distributed/global_gate.hpp"
#include "gatefold/distributed/sharded.hpp"
#include "gatefold/distributed/slot_exchange.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), TakeWeights, GiveAdjoints);

namespace dist {

/// A mixture whose experts are distributed over several shards (expert parallelism). The experts are divided
/// evenly and in order, or by a Placement. move_experts changes the distribution later.
///
///     u[n] = Σ_e w[n,e] · expert_e(x[n]),   n: the items of all shards as one batch, in shard order      (1)
///
/// ExpertParallel replaces its member `mixture` in a model, and computes the same values as this Mixture in one process
/// with the whole batch. On the CPU, the outputs are equal bit for bit if the plan is a SparsePlan and
/// `exchange.bfloat16` is false. All shards call it together, each with its own items; a shard can have 0 items.
///
/// Items are sent to the shards of their experts, and the results are sent back (SlotExchange). The gate routes the
/// items of all shards as one batch (GlobalGate). Each shard computes one term of the gradient of the gate;
/// DataParallel adds the terms. The gradient of an expert is complete on the shard of the expert. Experts that draw
/// random numbers (HiddenDropout) draw the same numbers as in one process, from the noise of shard 0. For inference,
/// replicate() copies experts to further shards; backward throws if an expert has copies.
///
/// With `exchange.bfloat16`, all rows of floats are rounded to bfloat16, even rows that stay on their shard. With
/// `exchange.chunks = 2`, the rows of half of the experts are transferred while the other half computes. Chunks do not
/// change the bits of the results.
/// @param x  [N_i, in_dim] in, u [N_i, out_dim] out: this shard's items
/// @throws the errors of Mixture; ArgumentError if the placement has entries, but not one shard for each expert;
///         ArgumentError if there are several shards and the gate needs each sequence on one shard (SoftMoe,
///         similarity), but the extra inputs have no sequence length; ArgumentError on all shards if a gate gets
///         different noise, k, length, tau or stage (DistilledTop1) on different shards; Error if another shard has
///         failed
/// @cost   the experts' work on the slots of this shard's experts. Forward sends one row for each pair of an item and a
///         shard that holds experts of the item, and returns one row for each slot. Backward transfers as many rows as
///         forward if it uses weighted_backward of the experts (Mixture); otherwise one row for each slot in each
///         direction
/// @order  the order of Mixture
template <class GateT, class ExpertT, class ShardT>
struct ExpertParallel {
  Mixture<GateT, ExpertT> mixture;
  ShardT* shard;
  Placement placement{};  // which shard holds which expert when a run begins
  ExchangeOptions exchange{};

  template <class T, class B>
  struct Params {
    gatefold::Params<GateT, T, B> gate;
    Sharded<gatefold::Params<ExpertT, T, B>> expert;
    GATEFOLD_PACK(gate, expert)
  };
  /// The values that forward keeps for backward: the routing plan, the values of the gate, and the values of the
  /// experts of this shard. The plan and the values of the gate are for the items of all shards, or only for this
  /// shard's items if the gate routes each shard separately (see GlobalGate).
  template <class T, class B>
  struct Saved : GlobalGate<GateT, T, B>::Saved {
    SlotExchange<T, B> slots;
    Tensor<T, 2, B> x;                                     // [rows, in_dim] the inputs of this shard's experts
    std::vector<gatefold::Saved<ExpertT, T, B>> expert{};  // [chunks]
    /// [S, out_dim] The outputs of the experts for the S slots of this shard's items. Empty if backward does not need
    /// them.
    Tensor<T, 2, B> z;
    BatchStamp batch;
    std::shared_ptr<const Deal> deal;  // which shard held which expert during forward
    Index passes = 0;                  // number of forward passes
    Noise noise;                       // random numbers for experts with dropout
    void mixtures(auto&& f) const { f(*this); }
  };
  template <class T, class B>
  using Extra = gatefold::Extra<Mixture<GateT, ExpertT>, T, B>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return mixture.in_dim(); }
  Index out_dim() const { return mixture.out_dim(); }
  Index experts() const { return mixture.experts(); }

  /// Returns the parameters of this shard: the gate, and only the experts of this shard. The values are the same as in
  /// one process with the same seed.
  /// @cost   memory for all experts of the layer until it returns
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    GATEFOLD_REQUIRE(
        (!detail_::hook::plan::weights_inputs<Plan<GateT, T, B>>() || local::is_enough<GateT, B>()),
        "gatefold: in an ExpertParallel, a WeightOnInput routes only the items of its shard, but auxiliary "
        "losses, mixing, capacity, choices of experts and noise depend on the whole batch: use a gate "
        "without them; see docs/how-to/distributed.md#gates-on-shards");
    expect_shard();
    auto whole = mixture.template init<T, B>(ctx, seed);
    Params<T, B> p{std::move(whole.gate), {}};
    const char* where = "ExpertParallel";
    take_experts(ctx, mixture.expert, placement.without_copies(where).filled(where, experts(), shard->count()),
                 shard->index(), shard->count(), p.expert, whole.expert);
    return p;
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Extra<T, B>&) const {
    expect_shard();
    expect(exchange.chunks >= 1, "ExpertParallel", "exchange.chunks", "at least 1", exchange.chunks);
    const Deal* deal = p.expert.deal.get();
    expect(deal != nullptr, "ExpertParallel", "params", "parameters from init, distributed over the shards",
           "parameters that are not distributed");
    expect(deal->placement.experts() == experts(), "ExpertParallel", "params: experts",
           Joined{experts(), " (the experts of the Mixture)"}, deal->placement.experts());
    expect(deal->shards == shard->count(), "ExpertParallel", "params: shards",
           Joined{shard->count(), " (the shards of dist::run)"}, deal->shards);
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>())
      own_experts(p).validate(p.expert.part, deal->placement.count(shard->index()));
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Saved<T, B>& saved,
               const Extra<T, B>& extra = {}, const Step& step = {}) const {
    forward_overlapping(ctx, p, x, u, saved, extra, step, NoWork{});
  }
  /// Runs forward, and calls work() while the first items are transferred to the shards of their experts. With several
  /// chunks of experts, these are the items of the first chunk.
  template <class T, class B, class Step, class Work>
  void forward_overlapping(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u,
                           Saved<T, B>& saved, const Extra<T, B>& extra, const Step& step, const Work& work) const {
    const auto here = ctx.here();
    expect_forward("ExpertParallel.forward", *this, p, x, "u", u, extra);
    saved.batch.take(x);
    GlobalGate<GateT, T, B>::forward(mixture.filled_gate(), *shard, ctx, p.gate, x, saved, mixture.of_gate(extra));
    auto mark = ctx.mark();
    const auto in = saved.own().dispatch(ctx, x);
    saved.deal = p.expert.deal;
    ++saved.passes;
    saved.slots.begin(*shard, ctx, in.groups, in.x.extent(0), p.expert.deal->placement, exchange.chunks);
    take_noise(ctx, in.groups, in.x.extent(0), saved, extra);
    saved.x.resize(saved.slots.rows(), in_dim());
    saved.expert.resize(static_cast<std::size_t>(exchange.chunks));
    using Z = Slot<T, B>;
    const auto z_here = ctx.template scratch<Z>(saved.slots.groups().slots, out_dim());
    const View<Z, 2, B> z = mixture.outputs(ctx, saved.z, in.groups.slots);
    const auto experts_here = own_experts(p, saved);
    in_chunks(
        saved.slots,
        [&](Index c, const auto& beside) {
          saved.slots.bring_rows(*shard, ctx, in.x, saved.x, exchange.bfloat16, c, beside);
        },
        [&](Index c, const Groups<B>& groups, const Range& s) {
          forward_slots<T, B, Z>(experts_here, ctx, p.expert.part, groups, saved.x, z_here.rows(s.first, s.count),
                                 saved.expert[static_cast<std::size_t>(c)]);
        },
        [&](Index c, const auto& beside) {
          saved.slots.template return_slots<Z>(*shard, ctx, z_here, z, exchange.bfloat16, c, beside);
        },
        work);
    mixture.combine(ctx, saved.own(), z, u, step);
  }

  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads, const Extra<T, B>& extra,
                ExtraGrad<T, B>& dextra) const {
    backward_overlapping(ctx, p, x, saved, du, dx, grads, extra, dextra, NoWork{});
  }
  /// Runs backward, and calls work() while gradients are transferred between shards. work() has finished before
  /// backward adds to dx and dextra.
  template <class T, class B, class Work>
  void backward_overlapping(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                            In<T, 2, B> du, Out<T, 2, B> dx, Params<T, B>& grads, const Extra<T, B>& extra,
                            ExtraGrad<T, B>& dextra, const Work& work) const {
    const auto here = ctx.here();
    expect_backward("ExpertParallel.backward", *this, p, x, du, dx, grads, extra);
    saved.batch.expect_same("ExpertParallel.backward", x);
    expect(saved.deal == p.expert.deal, "ExpertParallel.backward", "saved",
           "the Saved that forward wrote for these parameters",
           "one of other parameters, or from before experts moved");
    saved.deal->placement.without_copies("ExpertParallel.backward");
    auto mark = ctx.mark();
    const auto& plan = saved.own();
    mixture.template expect_plan<T, B>("ExpertParallel.backward", plan, saved.z, x, experts());
    const auto in = plan.dispatched(x);
    const Index slots_here = saved.slots.groups().slots;
    auto dplan = plan.grad(ctx);
    using Z = Slot<T, B>;
    const auto dslots_here = ctx.template scratch<Z>(slots_here, in_dim());
    const auto dslots = ctx.template scratch<Z>(in.groups.slots, in_dim());
    const auto experts_here = own_experts(p, saved);
    const auto give_back = [&](Index c, const auto& beside) {
      saved.slots.template return_slots<Z>(*shard, ctx, dslots_here, dslots, exchange.bfloat16, c, beside);
    };
    if constexpr (takes_weights<T, B>()) {
      const auto weights = plan.slot_weights(dplan);
      auto w = ctx.template scratch<T>(in.groups.slots, 1), w_here = ctx.template scratch<T>(slots_here, 1);
      auto dw_here = ctx.template scratch<T>(slots_here, 1);
      B::for_each(ctx, in.groups.slots, functor::TakeWeights<T, B>{in.groups, weights, w});
      saved.slots.bring_slots(*shard, ctx, w, w_here, false);
      auto du_here = ctx.template scratch<T>(saved.slots.rows(), out_dim());
      in_chunks(
          saved.slots,
          [&](Index c, const auto& beside) {
            saved.slots.bring_rows(*shard, ctx, du, du_here, exchange.bfloat16, c, beside);
          },
          [&](Index c, const Groups<B>& groups, const Range& s) {
            weighted_backward_slots<T, B, Z>(experts_here, ctx, p.expert.part, groups, saved.x,
                                             saved.expert[static_cast<std::size_t>(c)], du_here,
                                             SlotWeights<T, B>{View<const T, 1, B>(w_here.data() + s.first, s.count),
                                                               View<T, 1, B>(dw_here.data() + s.first, s.count)},
                                             dslots_here.rows(s.first, s.count), grads.expert.part);
          },
          give_back, work);
      saved.slots.return_slots(*shard, ctx, dw_here, w, false);
      B::for_each(ctx, in.groups.slots, functor::GiveAdjoints<T, B>{in.groups, weights, w});
    } else {
      auto dz = ctx.template scratch<T>(in.groups.slots, out_dim());
      plan.combine_backward(ctx, saved.z, du, dz, dplan);
      auto dz_here = ctx.template scratch<T>(slots_here, out_dim());
      in_chunks(
          saved.slots,
          [&](Index c, const auto& beside) {
            saved.slots.bring_slots(*shard, ctx, dz, dz_here, exchange.bfloat16, c, beside);
          },
          [&](Index c, const Groups<B>& groups, const Range& s) {
            experts_here.backward(ctx, p.expert.part, groups, saved.x, saved.expert[static_cast<std::size_t>(c)],
                                  dz_here.rows(s.first, s.count), dslots_here.rows(s.first, s.count),
                                  grads.expert.part);
          },
          give_back, work);
    }
    mixture.dispatch_backward(ctx, plan, x, dslots, dx, dplan);
    GlobalGate<GateT, T, B>::backward(mixture.filled_gate(), *shard, ctx, p.gate, x, saved, dplan, dx, grads.gate,
                                      mixture.of_gate(extra), dextra);
  }

 private:
  template <class T, class B>
  using Slot = typename Mixture<GateT, ExpertT>::template Slot<T, B>;
  template <class T, class B>
  static constexpr bool takes_weights() {
    return Mixture<GateT, ExpertT>::template takes_weights<T, B>();
  }
  /// Overlaps transfers with computation. The experts are divided into chunks, and each chunk c needs bring(c),
  /// compute(c) and give_back(c). Each chunk except the last is computed while the rows of the next chunk arrive. The
  /// last chunk is computed while the results of the first chunk are sent back. A single chunk is computed between the
  /// two transfers, without overlap. work() runs while the rows of the first chunk arrive.
  template <class BringF, class ComputeF, class ReturnF, class T, class B, class Work>
  static void in_chunks(const SlotExchange<T, B>& slots, const BringF& bring, const ComputeF& compute,
                        const ReturnF& give_back, const Work& work) {
    const auto compute_chunk = [&](Index c) {
      const Range s = slots.slots_of(c);
      if (s.count > 0 || slots.chunks() == 1) compute(c, slots.groups(c), s);
    };
    const Index last = slots.chunks() - 1;
    bring(0, work);
    for (Index c = 0; c < last; ++c) bring(c + 1, [&] { compute_chunk(c); });
    if (last == 0) {
      compute_chunk(0);
      give_back(0, NoWork{});
    } else {
      give_back(0, [&] { compute_chunk(last); });
    }
    for (Index c = 1; c <= last; ++c) give_back(c, NoWork{});
  }
  void expect_shard() const {
    expect(shard != nullptr, "ExpertParallel", "shard", "the address of a shard of dist::run", "null");
  }
  template <class T, class B>
  ExpertT own_experts(const Params<T, B>& p) const {
    return some_experts(mixture.expert, p.expert.deal->placement, shard->index(), {0, experts()});
  }
  template <class T, class B>
  ExpertT own_experts(const Params<T, B>& p, const Saved<T, B>& saved) const {
    return with_noise(own_experts(p), saved.noise);
  }
  /// Sets saved.noise to the noise of shard 0, and gives each received slot its number in the random stream
  /// (SlotExchange::number). The noise of an item then does not depend on which shard holds its expert. Does nothing if
  /// the experts draw no random numbers.
  template <class T, class B>
  void take_noise([[maybe_unused]] typename B::Context& ctx, const Groups<B>& own, Index rows, Saved<T, B>& saved,
                  const Extra<T, B>& extra) const {
    if constexpr (Mixture<GateT, ExpertT>::draws) {
      struct Told {
        Index rows, of_items, draws;
        Random random;
      };
      const Told mine{rows, !own.rows.empty(), extra.noise.random.has_value(), extra.noise.random.value_or(Random{})};
      const std::vector<Told> all = shard->all_gather(mine);
      saved.noise = all[0].draws ? Noise{all[0].random} : Noise{};
      Index first = 0, of_items = 0;
      for (std::size_t j = 0; j < all.size(); ++j) {
        if (static_cast<Index>(j) < shard->index()) first += all[j].rows;
        of_items += all[j].of_items;  // of_items is 0 for a shard without items
      }
      if (saved.noise.random) saved.slots.number(*shard, ctx, own, of_items > 0, first, saved.deal->placement);
    }
  }
};
template <class G, class E, class S>
ExpertParallel(Mixture<G, E>, S*, Placement, ExchangeOptions) -> ExpertParallel<G, E, S>;
template <class G, class E, class S>
ExpertParallel(Mixture<G, E>, S*, Placement) -> ExpertParallel<G, E, S>;
template <class G, class E, class S>
ExpertParallel(Mixture<G, E>, S*) -> ExpertParallel<G, E, S>;

/// The type that is deduced if ExpertParallel is constructed from wrong arguments, so that a static_assert can explain
/// the mistake.
template <class M, class S>
struct NoMixture {};
/// ExpertParallel for wrong arguments: compiling it fails with a message that names the mistake.
template <class M, class S>
struct ExpertParallel<NoMixture<M, S>, M, S> {
  ExpertParallel(const auto&...) {}
  GATEFOLD_REQUIRE(
      std::is_void_v<M>,
      "gatefold: ExpertParallel takes a Mixture and the address of a shard: ExpertParallel{mixture, &shard}; put "
      "wrappers of the mixture outside it: WithShared{ExpertParallel{...}, ...}; see docs/how-to/distributed.md");
};
template <class M, class S, class... A>
ExpertParallel(const M&, const S&, const A&...) -> ExpertParallel<NoMixture<M, S>, M, S>;

}  // namespace dist

namespace functor {

/// Sets w[s] to the weight of slot s (one pick of an expert by an item). Unused slots at the end are skipped.
template <class T, class B>
struct TakeWeights {
  Groups<B> groups;
  SlotWeights<T, B> weights;
  View<T, 2, B> w;
  GATEFOLD_HD void operator()(Index s) const {
    if (s < groups.offsets(groups.experts())) w(s, 0) = weights(s);
  }
};
/// Stores dw[s] as the gradient of the weight of slot s (one pick of an expert by an item).
template <class T, class B>
struct GiveAdjoints {
  Groups<B> groups;
  SlotWeights<T, B> weights;
  View<const T, 2, B> dw;
  GATEFOLD_HD void operator()(Index s) const {
    if (s < groups.offsets(groups.experts())) weights.set_adjoint(s, dw(s, 0));
  }
};

}  // namespace functor

}  // namespace gatefold
