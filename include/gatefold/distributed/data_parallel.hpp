#pragma once

#include "gatefold/distributed/all_reduce.hpp"
#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/gate_needs.hpp"
#include "gatefold/distributed/sharded.hpp"
#include "gatefold/optim/averaged.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/expert_rates.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/train/in_groups.hpp"

namespace gatefold {

namespace dist {

namespace norms {

template <class O>
struct Of;

}  // namespace norms

/// The outermost optimizer of a run on several shards: it adds up the gradients of all shards, so that a step uses the
/// whole batch.
///
///     g ← Σ_j g_j over the shards,   ‖g‖² = Σ g² of unsharded tensors + Σ_e Σ g² of expert e of each mixture   (1)
///
/// Every shard makes the same step on the tensors that all shards hold, and a step on its own experts. Clipping uses
/// the norm of all gradients; the bits of this norm do not depend on which shard holds which expert. The loss must be
/// scaled by LossOfShards.
/// @throws ArgumentError from begin if shards begin with different parameters (for example because of different seeds)
///         or with different learning rates; Error if another shard has failed
/// @cost   all_reduce of the gradients that are not sharded, and of one number for each expert
template <optim::Optimizer OptimizerT, class ShardT>
struct DataParallel {
  using IsOptimizer = void;
  GATEFOLD_REQUIRE(norms::Of<OptimizerT>::given,
                   "gatefold: put Clipped directly inside DataParallel (only Scheduled may be between them), because "
                   "Clipped further inside would use the gradient norm of only one shard; replace NormalizedGd by "
                   "SyncNorm{NormalizedGd{...}, &shard}; see docs/how-to/distributed.md");
  static_assert(optim::check_inside<OptimizerT>());
  OptimizerT optimizer;
  ShardT* shard;

  template <class Pack>
  using State = typename OptimizerT::template State<Pack>;
  void validate() const {
    expect(shard != nullptr, "DataParallel", "shard", "the address of a shard of dist::run", "null");
    optim::validate_options(optimizer);
  }
  template <class C, class Pack>
  auto begin(C& ctx, const Pack& params) const {
    validate();
    local::check_gates<typename C::Backend>(params);
    expect_same(*shard, memory_of(ctx), "DataParallel", params);
    expect_same(*shard, "DataParallel", "lr", optim::rate_of(optimizer));
    return optimizer.begin(ctx, params);
  }
  /// Replaces the gradients by their sums over the shards, equation (1) of DataParallel. A Trainer calls it before
  /// `measure` and `step`.
  template <class C, class Pack>
  void reduce(C& ctx, Pack& grads) const {
    all_reduce(*shard, ctx, grads);
  }
  /// Returns ‖g‖² of equation (1), for gradients that `reduce` has summed over the shards.
  template <class C, class Pack>
  optim::Measured measure(C& ctx, const Pack& grads) const;
  template <class C, class Pack, class StateT>
  void step(C& ctx, Pack& params, Pack& grads, StateT& state, const optim::Measured& measured) const {
    optim::measured_step(optimizer, ctx, params, grads, state, measured);
  }
};
template <class O, class S>
DataParallel(O, S*) -> DataParallel<O, S>;

template <class OptimizerT, class ShardT>
struct Zero;
template <class OptimizerT, class ShardT>
struct SyncNorm;

/// Compile-time properties of optimizers: whether they compute a norm of gradients, and whether they can update parts
/// of a tensor separately. On several shards, an optimizer must not compute the norm itself, because this norm would
/// include only the gradients of one shard.
namespace norms {

template <class O>
struct Of {
  static constexpr bool taken = detail_::named::measure<O>();  // a step computes a norm unless the caller passes one
  static constexpr bool given = !taken;                        // a step computes no norm if the caller passes the norm
  static constexpr bool by_element = !taken;                   // the step of an element depends only on that element
  static constexpr bool in_rows = true;                        // the optimizer can update some rows without the others
};
template <class O>
struct Of<optim::Clipped<O>> {
  static constexpr bool taken = true, given = !Of<O>::taken, by_element = false, in_rows = Of<O>::in_rows;
};
template <class O, class S>
struct Of<SyncNorm<O, S>> {
  static constexpr bool taken = false, given = true, by_element = false, in_rows = true;
};
template <class O, class S>
struct Of<optim::Scheduled<O, S>> : Of<O> {};
template <class O>
struct Of<optim::Averaged<O>> : Of<O> {
  static constexpr bool in_rows = false;  // swap_averages would need the averages of all rows on each shard
};
template <class O, class F>
struct Of<optim::ExpertRates<O, F>> : Of<O> {
  static constexpr bool in_rows = false;  // rates belong to row numbers, and row 0 is a different expert on each shard
};
template <class O, class S>
struct Of<Zero<O, S>> {
  static constexpr bool taken = Of<O>::taken, given = !taken, by_element = Of<O>::by_element;
  static constexpr bool in_rows = Of<O>::in_rows;
};
template <class F, class R>
struct Of<InGroups<F, R>> {
  static constexpr bool taken = Of<F>::taken || Of<R>::taken, given = !taken;
  static constexpr bool by_element = Of<F>::by_element && Of<R>::by_element;
  static constexpr bool in_rows = Of<F>::in_rows && Of<R>::in_rows;
};

}  // namespace norms

}  // namespace dist

namespace functor {

/// Adds terms[0], terms[1], … to `*total`, in this order.
struct AddInOrder {
  const double* terms;
  Index count;
  double* total;
  GATEFOLD_HD void operator()(Index) const {
    for (Index i = 0; i < count; ++i) *total += terms[i];
  }
};

}  // namespace functor

namespace dist {

namespace squares {

/// A visitor that counts the experts of all mixtures whose experts are distributed over the shards (Sharded packs).
struct CountExperts {
  Index& n;
  void operator()(const Name&, const auto&) const {}
  void sharded(const Name&, const auto& g) const { n += g.deal->placement.experts(); }
};
/// A visitor that computes sums of squared gradients, Σ g². It computes one sum over the tensors that all shards hold,
/// and one sum for each expert that this shard holds.
template <class C>
struct OfPack {
  C& ctx;
  /// `whole` is the sum over the tensors that all shards hold. `experts` has one sum for each expert, mixture by
  /// mixture.
  double *whole, *experts;
  Index shard;
  void operator()(const Name&, const auto& g) const { optim::add_squares(ctx, FlatTensor(g), whole); }
  void sharded(const Name& at, const auto& g) {
    const auto one = [&](const Name&, const auto& t, const DealtRows& rows) {
      if (t.extent(0) == 0) return;
      const Index width = rows::width(t);
      const auto* row = t.data();
      for (const Index e : rows.of(shard)) {
        optim::add_squares(ctx, Parts{width, optim::summed_at_once}, row, experts + rows.experts.first + e);
        row += width;
      }
    };
    sharded::Visitor<true, decltype(one)>{one}.sharded(at, g);
    experts += g.deal->placement.experts();
  }
};

}  // namespace squares

template <optim::Optimizer OptimizerT, class ShardT>
template <class C, class Pack>
optim::Measured DataParallel<OptimizerT, ShardT>::measure(C& ctx, const Pack& grads) const {
  Index experts = 0;
  for_each_learned(squares::CountExperts{experts}, grads);
  const auto all = ctx.template scratch<double>(1 + experts);
  double* const sums = all.data();
  fill(ctx, all, 0);
  for_each_learned(squares::OfPack<C>{ctx, sums, sums + 1, shard->index()}, grads);
  shard->sum(ctx, sums + 1, experts);  // a shard adds 0 for experts of other shards
  C::Backend::for_each(ctx, 1, functor::AddInOrder{sums + 1, experts, sums});
  return {sums};
}

}  // namespace dist
}  // namespace gatefold
