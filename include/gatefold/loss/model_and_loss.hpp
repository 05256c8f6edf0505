#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/loss/loss.hpp"

namespace gatefold {

/// The parameters of a model and of its loss in one struct, for losses with learned parameters. Gradient clipping
/// therefore uses one norm over both, and a checkpoint contains both.
template <class ModelP, class LossP>
struct ModelAndLoss {
  ModelP model;
  LossP loss;
  GATEFOLD_PACK(model, loss)
};

namespace detail_::loss {

/// Gives a Trainer the same functions for losses with and without parameters. `Learned` is the type of all learned
/// parameters: the parameters of the model, or ModelAndLoss if the loss has parameters too.
template <class LossT, class ModelP, class T, class B>
struct Of {
  static constexpr bool fits = check_loss<LossT, ModelP, T, B>();
  static constexpr bool learns = fits && detail_::named::Params<LossT>();
  using Learned = std::conditional_t<learns, ModelAndLoss<ModelP, Params<LossT, T, B>>, ModelP>;
  using Target = TargetOf<LossT, T, B>;

  static Learned init(const LossT& loss, typename B::Context& ctx, Seed seed, ModelP&& model) {
    if constexpr (learns) {
      return {std::move(model), init_params<T, B>(loss, ctx, seed)};
    } else {
      return std::move(model);
    }
  }
  /// Returns the parameters of the model from `learned`, which contains the parameters of the loss too if the loss has
  /// any.
  static auto& model(auto& learned) {
    if constexpr (learns) {
      return learned.model;
    } else {
      return learned;
    }
  }
  static void forward(const LossT& loss, typename B::Context& ctx, const Learned& p, In<T, 2, B> y,
                      const Target& target, Out<T, 1, B> value, Saved<LossT, T, B>& saved) {
    if constexpr (learns) {
      loss.template forward<T, B>(ctx, p.loss, p.model, y, target, value, saved);
    } else {
      loss.template forward<T, B>(ctx, y, target, value);
    }
  }
  static void backward(const LossT& loss, typename B::Context& ctx, const Learned& p, In<T, 2, B> y,
                       const Target& target, const Saved<LossT, T, B>& saved, Out<T, 2, B> dy, Learned& grads) {
    if constexpr (learns) {
      loss.template backward<T, B>(ctx, p.loss, p.model, y, target, saved, dy, grads.loss, grads.model);
    } else {
      loss.template backward<T, B>(ctx, y, target, dy);
    }
  }
};

}  // namespace detail_::loss
}  // namespace gatefold
