#pragma once

#include <string_view>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

/// Scores by a linear map of the item. If an item is a sequence of `length` rows, the map is applied to the sum of its
/// rows.
///
///     z[n,:] = Σ_l x[n,l,:] W + b                                                                       (1)
///
/// Source: Shazeer et al. 2017, arXiv:1701.06538, eq. (4); with length > 1 items are whole sequences (paper 000, sec.
/// 3).
/// @param x      [N, length · D] in   items
/// @param z      [N, E]          out  logits
/// @param initial  initial weights and bias; papers 000 and 003 use Initial::zero() and no bias
/// @throws ArgumentError unless model_dim, experts, length >= 1, and x and the parameters have the shapes that these
///         options define
/// @cost   2·N·D·E flop
struct LinearScores {
  Index model_dim = 0, experts = 0, length = 1;
  bool bias = true;
  Initial initial{};

  static constexpr bool items_adjoint_is_optional = true;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> weight;  // [D, E]
    Tensor<T, 1, B> bias;    // [E], [0] without bias
    GATEFOLD_PACK(weight, bias)
    static constexpr int expert_extents[] = {1, 0};
  };

  /// Returns a copy of the options. If `model_dim` is 0, `model_dim` of the copy is item_width / length.
  /// @throws ArgumentError unless item_width is length · model_dim, or model_dim is 0 and length divides item_width
  LinearScores with_model_dim(Index item_width) const {
    expect(length >= 1, "LinearScores", "length", "at least 1", length);
    expect(item_width % length == 0, "LinearScores", "length", Joined{"a divisor of the items' width ", item_width},
           length);
    return fill_model_dim(*this, "LinearScores", item_width / length);
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("LinearScores.init", {{"model_dim", model_dim}, {"experts", experts}, {"length", length}});
    return {initial_weights<T>(ctx, initial, seed.fork(0), model_dim, experts),
            initial_biases<T>(ctx, initial, seed.fork(1), model_dim, bias ? experts : 0)};
  }

  template <class T, class B>
  void validate(const Params<T, B>& p) const {
    expect(length >= 1, "LinearScores", "length", "at least 1", length);
    expect_shape("LinearScores", "params.weight", p.weight, {model_dim, experts});
    expect_shape("LinearScores", "params.bias", p.bias, {bias ? experts : 0});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z) const {
    score<T, B>(ctx, p, x, [&](View<const T, 2, B> total, const auto& epilogue) {
      B::gemm(ctx, total, false, p.weight.view(), false, false, z, epilogue);
    });
  }
  /// Computes the logits z like forward, and calls rows(lanes, n, row) for the row of logits of each item n (gemm_rows
  /// of backend.hpp). If z has no memory, the logits are not stored.
  template <class T, class B, class F>
  void forward_rows(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z,
                    const F& rows) const {
    score<T, B>(ctx, p, x, [&](View<const T, 2, B> total, const auto& epilogue) {
      B::gemm_rows(ctx, total, p.weight.view(), false, z, epilogue, rows);
    });
  }
  /// Adds the gradients of x and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads) const {
    auto mark = ctx.mark();
    if (!grads.weight.is_skipped())
      B::gemm(ctx, positions_summed(ctx, x), true, dz, false, true, grads.weight.view(), functor::Store{});
    if (bias && !grads.bias.is_skipped())
      B::grouped_sum(ctx, one_group(ctx, dz.extent(0)), dz, grads.bias.view().as(1, experts));
    if (dx.size() > 0) backward_items(ctx, p, x, dz, dx);
  }
  /// Adds the gradient of x to dx, and computes no gradient of the parameters.
  template <class T, class B>
  void backward_items(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz,
                      Out<T, 2, B> dx) const {
    auto mark = ctx.mark();
    if (length == 1) {
      B::gemm(ctx, dz, false, p.weight.view(), true, true, dx, functor::Store{});
    } else {
      auto dtotal = ctx.template scratch<T>(x.extent(0), model_dim);
      B::gemm(ctx, dz, false, p.weight.view(), true, false, dtotal, functor::Store{});
      B::for_rows(ctx, dx.extent(0), functor::SumPositionsBackward<T, B>{length, 1, dtotal, dx});
    }
  }

 private:
  /// Calls product(rows, epilogue), with rows = Σ_l x[:,l,:] the sum of the rows of each item.
  template <class T, class B, class F>
  void score(auto& ctx, const Params<T, B>& p, View<const T, 2, B> x, const F& product) const {
    auto mark = ctx.mark();
    const View<const T, 2, B> total = positions_summed(ctx, x);
    bias ? product(total, functor::AddBias<T, B>{p.bias.view().as(1, experts)}) : product(total, functor::Store{});
  }
  template <class T, class B>
  View<const T, 2, B> positions_summed(auto& ctx, View<const T, 2, B> x) const {
    if (length == 1) return x;
    auto total = ctx.template scratch<T>(x.extent(0), model_dim);
    B::for_rows(ctx, total.extent(0), functor::SumPositions<T, B>{length, 1, x, total});
    return total;
  }
};

/// Wraps a scores policy so that its parameters Θ are not trained. With random parameters it is a random router. x̄ is
/// the gradient of the items x.
///
///     z = scores(x; Θ),   Θ ← Θ,   x̄ as in `scores`                                                     (1)
///
/// Source: SMoE-dropout, Chen et al. 2023, arXiv:2303.01610, sec. 3.2. Neither optimizers nor weight decay change the
/// parameters. backward leaves the gradients of the parameters unchanged. The tensors have the same names as in the
/// parameters of `scores`, for example in files.
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
