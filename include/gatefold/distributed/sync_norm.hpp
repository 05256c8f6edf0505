#pragma once

#include <type_traits>

#include "gatefold/update/sharpness_aware.hpp"
#include "gatefold/update/update.hpp"

namespace gatefold::dist {

/// Wraps an update rule (which combines a layer's input and output) that uses a norm over the items of a batch, or an
/// optimizer that uses a norm of gradients. The norm is then taken over all shards.
///
///     Residual{dist::SyncNorm{update::SharpnessAware{.norm = update::Norm::batch}, &shard}, branch}
///
///     ‖u‖² = Σ_j ‖u_j‖²,   ⟨n, dz⟩ = Σ_j ⟨n_j, dz_j⟩   over the shards j                                (1)
///
/// The rows of shard j are u_j, n_j and dz_j (see SharpnessAware for n and dz). SyncBatchNorm does the same for the
/// means of a batch. All shards call it together, also shards without items. Forward, infer and backward each sum one
/// number over the shards. With norms of single items, no exchange is needed.
/// @tparam RuleT  a rule without parameters and carry; the last argument of its functions is a sum over the batch
///         (WholeBatch)
/// @throws the errors of the rule; ArgumentError if `shard` is null
/// @order  the order of Shard::sum: the values of one process up to rounding; the bits depend on the number of shards
template <class RuleT, class ShardT>
struct SyncNorm {
  static constexpr bool takes_norm = requires(RuleT r) { requires std::is_same_v<decltype(r.norm), update::Norm>; };
  GATEFOLD_REQUIRE(
      takes_norm,
      "gatefold: SyncNorm takes a rule or optimizer with a norm over a batch: update::SharpnessAware{.norm = "
      "update::Norm::batch}, or optim::NormalizedGd; see docs/how-to/distributed.md");
  RuleT rule;
  ShardT* shard;

  static constexpr int evaluations = detail_::hook::rule::evaluations<RuleT>();

  template <class T, class B>
  using Saved = gatefold::Saved<RuleT, T, B>;
  template <class T, class B>
  void validate(const Nothing<T, B>& params, Index items, Index dim, const Nothing<T, B>& carry) const {
    expect(shard != nullptr, "SyncNorm", "shard", "the address of a shard of dist::run", "null");
    if constexpr (detail_::hook::rule::validate<RuleT, T, B>()) rule.validate(params, items, dim, carry);
  }

  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Nothing<T, B>& carry, F&& f,
               Out<T, 2, B> y, Saved<T, B>& saved) const {
    rule.forward(ctx, p, x, carry, f, y, saved, sum());
  }
  template <class T, class B, class F>
  void infer(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Nothing<T, B>& carry, F&& f,
             Out<T, 2, B> y) const {
    rule.infer(ctx, p, x, carry, f, y, sum());
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>& dcarry, Out<T, 2, B> dx, Nothing<T, B>& grads) const {
    rule.backward(ctx, p, x, saved, df, dy, dcarry, dx, grads, sum());
  }

 private:
  struct OverShards {
    ShardT& shard;
    template <class C, class T>
    void operator()(C& ctx, T* values, Index n) const {
      shard.sum(ctx, values, n);
    }
  };
  OverShards sum() const { return {*shard}; }
};
template <class R, class S>
SyncNorm(R, S*) -> SyncNorm<R, S>;

}  // namespace gatefold::dist
