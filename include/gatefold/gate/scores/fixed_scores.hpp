#pragma once

#include <string_view>

#include "gatefold/gate/count_experts.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"

namespace gatefold {

/// Wraps a scores policy so that its parameters Θ are not trained. With random parameters it is a random router. x̄ is
/// the gradient of the items x.
///
///     z = scores(x; Θ),   Θ ← Θ,   x̄ as in `scores`                                                     (1)
///
/// Source: SMoE-dropout, Chen et al. 2023, arXiv:2303.01610, sec. 3.2. Neither optimizers nor weight decay change the
/// parameters. backward leaves the gradients of the parameters unchanged. In copies and files, the parameters have the
/// same names as those of `scores`.
/// @tparam ScoresT  scores without extra inputs that have backward_items(ctx, params, x, dz, dx)
/// @cost   the cost of `scores` without parameter gradients
template <class ScoresT>
struct Fixed {
  ScoresT scores{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    static constexpr bool learned = false;
    gatefold::Params<ScoresT, T, B> scores;
    static void each(auto&& f, auto&... p) { gatefold::Params<ScoresT, T, B>::each(f, p.scores...); }
  };

  Index experts() const { return count_experts(scores); }
  Fixed with_model_dim(Index width) const { return {gatefold::with_model_dim(scores, width)}; }
  Fixed with_experts(Index count) const { return {gatefold::with_experts(scores, count)}; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {init_params<T, B>(scores, ctx, seed)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p) const {
    if constexpr (detail_::hook::scores::validate<ScoresT, T, B>()) scores.validate(p.scores);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z) const {
    scores.forward(ctx, p.scores, x, z);
  }
  /// Adds the gradient of the items x to dx. The parameters get no gradient.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>&) const {
    scores.backward_items(ctx, p.scores, x, dz, dx);
  }
};
template <class S>
Fixed(S) -> Fixed<S>;

/// Random linear scores that are not trained.
using FixedScores = Fixed<LinearScores>;

}  // namespace gatefold
