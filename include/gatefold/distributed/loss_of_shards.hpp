#pragma once

#include "gatefold/loss/loss.hpp"

namespace gatefold::dist {

/// The loss of a batch that is divided over several shards.
///
///     L = Σ_j n_j L_j / Σ_j n_j,   n_j: number of counted targets of shard j, L_j: its loss             (1)
///
/// The value is L on every shard. On a shard, the gradients of parameters are one term of the gradient of L;
/// DataParallel adds the terms of all shards. A shard can have no items or no counted targets; its own loss is then
/// ignored. All shards must call the functions together.
/// @tparam learns  whether the wrapped loss has parameters, which all shards share
/// @cost   two exchanges of one number in forward, and one in backward. For a loss with parameters, backward also
///         scales all gradients twice
template <class LossT, class ShardT, bool learns = detail_::named::Params<LossT>()>
struct LossOfShards {
  LossT loss;
  ShardT* shard;

  template <class T, class B>
  using Target = detail_::loss::TargetOf<LossT, T, B>;

  bool no_batch(Index items) const { return all().sum(items) == 0; }
  template <class T, class B>
  void validate(In<T, 2, B> y, const Target<T, B>& target) const {
    loss.template validate<T, B>(y, target);
  }
  /// Returns the number of targets of all shards that count for the loss.
  template <class C, class TargetV>
  Index counted(C& ctx, const TargetV& target) const {
    return all().sum(gatefold::detail_::loss::counted<typename C::Backend>(loss, ctx, target.extent(0), target));
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 1, B> value) const {
    loss.template forward<T, B>(ctx, y, target, value);
    sum<T, B>(ctx, target, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 2, B> dy) const {
    const T part = share<T, B>(ctx, target);
    if (part == 0) return fill(ctx, dy, 0);
    loss.template backward<T, B>(ctx, y, target, dy);
    B::for_each(ctx, dy.size(), functor::Scale<T>{part, dy.data()});
  }

  /// Replaces `value`, the loss of this shard, by the loss of all shards: Σ_j share_j value_j over the shards j, see
  /// share(). The host waits for the backend.
  template <class T, class B>
  void sum(typename B::Context& ctx, const Target<T, B>& target, Out<T, 1, B> value) const {
    T mine = 0;
    B::to_host(ctx, 1, value.data(), &mine);
    const T part = share<T, B>(ctx, target), total = all().sum(part == 0 ? T(0) : part * mine);
    B::from_host(ctx, 1, &total, value.data());
  }
  /// Returns the share of this shard j in the loss: n_j / Σ_i n_i, with n_i the number of counted targets of shard i.
  /// Returns 0 if no target of any shard counts.
  template <class T, class B>
  T share(typename B::Context& ctx, const Target<T, B>& target) const {
    const Index mine = gatefold::detail_::loss::counted<B>(loss, ctx, target.extent(0), target),
                total = all().sum(mine);
    return total > 0 ? static_cast<T>(mine) / static_cast<T>(total) : T(0);
  }

 private:
  ShardT& all() const {
    expect(shard != nullptr, "LossOfShards", "shard", "the address of a shard of dist::run", "null");
    return *shard;
  }
};

/// LossOfShards for a loss that has parameters of its own.
template <class LossT, class ShardT>
struct LossOfShards<LossT, ShardT, true> {
  LossT loss;
  ShardT* shard;

  template <class T, class B>
  using Target = detail_::loss::TargetOf<LossT, T, B>;
  template <class T, class B>
  using Params = gatefold::Params<LossT, T, B>;
  template <class T, class B>
  using Saved = gatefold::Saved<LossT, T, B>;

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return init_params<T, B>(loss, ctx, seed);
  }
  bool no_batch(Index items) const { return means().no_batch(items); }
  template <class T, class B>
  void validate(In<T, 2, B> y, const Target<T, B>& target) const {
    loss.template validate<T, B>(y, target);
  }
  template <class C, class TargetV>
  Index counted(C& ctx, const TargetV& target) const {
    return means().counted(ctx, target);
  }
  template <class T, class B, class ModelP>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
               const Target<T, B>& target, Out<T, 1, B> value, Saved<T, B>& saved) const {
    loss.template forward<T, B>(ctx, p, model, y, target, value, saved);
    means().template sum<T, B>(ctx, target, value);
  }
  /// Adds this shard's part of the gradient to `grads` and `dmodel`: share · ∇(mean over this shard's targets).
  /// backward of the wrapped loss adds this gradient without the factor `share`. The values that are already in `grads`
  /// and `dmodel` are therefore divided by `share` before the call, and all values are multiplied by `share` after it.
  template <class T, class B, class ModelP>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
                const Target<T, B>& target, const Saved<T, B>& saved, Out<T, 2, B> dy, Params<T, B>& grads,
                ModelP& dmodel) const {
    const T share = means().template share<T, B>(ctx, target);
    if (share == 0) return fill(ctx, dy, 0);
    const auto scale = [&](T factor) {
      gatefold::detail_::loss::scale(ctx, static_cast<double>(factor), grads);
      gatefold::detail_::loss::scale(ctx, static_cast<double>(factor), dmodel);
    };
    if (share != 1) scale(1 / share);
    loss.template backward<T, B>(ctx, p, model, y, target, saved, dy, grads, dmodel);
    if (share != 1) scale(share);
    B::for_each(ctx, dy.size(), functor::Scale<T>{share, dy.data()});
  }

 private:
  LossOfShards<LossT, ShardT, false> means() const { return {loss, shard}; }
};
template <class L, class S>
LossOfShards(L, S*) -> LossOfShards<L, S>;

}  // namespace gatefold::dist
