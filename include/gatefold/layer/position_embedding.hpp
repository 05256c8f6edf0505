#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/positions.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

namespace functor {

/// Puts the class token `first` before the tokens of item n, and adds the position embeddings `place`: u[n,:] = (first,
/// x[n,:]) + place.
template <class T, class B>
struct AddPlaces {
  View<const T, 2, B> x, first, place;  // [N, tokens · D], [0 or 1, D], [L, D]
  View<T, 2, B> u;                      // [N, L · D]

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const auto sum = [&](const T* token, Index begin, Index count) {
      const T* const at_place = place.data() + begin;
      T* const to = u.data() + n * u.extent(1) + begin;
      each_column<T>(lanes, count,
                     [&](const auto& at, Index j) { at.store(to + j, at.load(token + j) + at.load(at_place + j)); });
    };
    sum(first.data(), 0, first.size());
    sum(x.data() + n * x.extent(1), first.size(), x.extent(1));
  }
};
}  // namespace functor

/// Adds learned positions P to tokens, and puts a class token, `first`, before the tokens. It is part of the input
/// layers of a vision transformer.
///
///     u[n] = (first, x[n,0], …, x[n,tokens−1]) + P,   P [L, D],   L = tokens + 1                         (1)
///     u[n] = (x[n,0], …, x[n,tokens−1]) + P,          L = tokens             without a class token       (2)
///
/// Source: Dosovitskiy et al. 2021, arXiv:2010.11929, eq. (1). This is a branch, whose items are sequences.
/// @param x [N, tokens · D] in, u [N, L · D] out
/// @param initial  initial values of P; the initial class token is 0
/// @throws ArgumentError if tokens < 1, model_dim < 1 or a shape is wrong
/// @cost   N·L·D additions forward, 2·N·L·D backward
/// @order  gradients are summed over blocks of items in a fixed order; bitwise equal for every thread count
struct PositionEmbedding {
  Index tokens = 0, model_dim = 0;
  bool class_token = true;
  Initial initial = Initial::normal(0.02);

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> place;  // [L, D]
    Tensor<T, 2, B> first;  // [1, D], [0, D] without a class token
    GATEFOLD_PACK(place, first)
  };

  /// Returns L, the number of tokens of a sequence with its class token.
  Index length() const { return tokens + (class_token ? 1 : 0); }
  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return tokens * model_dim; }
  Index out_dim() const { return length() * model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("PositionEmbedding.init", {{"tokens", tokens}, {"model_dim", model_dim}});
    return {initial_weights<T>(ctx, initial, seed, length(), model_dim),
            constant_tensor<T>(ctx, 0, class_token ? 1 : 0, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Nothing<T, B>&) const {
    expect_shape("PositionEmbedding", "params.place", p.place, {length(), model_dim});
    expect_shape("PositionEmbedding", "params.first", p.first, {class_token ? 1 : 0, model_dim});
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>& extra = {}, const Step& step = {}) const {
    const auto here = ctx.here();
    expect_forward("PositionEmbedding.forward", *this, p, x, "u", u, extra);
    B::for_rows(ctx, x.extent(0), functor::AddPlaces<T, B>{x, p.first, p.place, u});
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>& extra, Nothing<T, B>&) const {
    const auto here = ctx.here();
    expect_backward("PositionEmbedding.backward", *this, p, x, du, dx, grads, extra);
    auto mark = ctx.mark();
    const Groups<B> items = one_group(ctx, x.extent(0));
    add_rows(ctx, items, du, dx, p.first.size());
    if (grads.place.is_skipped() && grads.first.is_skipped()) return;
    auto sum = ctx.template scratch<T>(length(), model_dim);
    B::grouped_sum(ctx, items, du, sum.as(1, out_dim()), false);
    if (!grads.place.is_skipped()) add(ctx, sum, grads.place.view());
    if (!grads.first.is_skipped()) add(ctx, sum.rows(0, grads.first.extent(0)), grads.first.view());
  }
};

}  // namespace gatefold
