#pragma once

#include <cmath>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

// Functors that scale the rows of a matrix to length 1. CosineScores and SoftMoe use them.
GATEFOLD_FUNCTORS((class T), Inverse, InverseBackward, UnitFactor);
GATEFOLD_FUNCTORS((class T, class B), UnitRows, UnitRowsScale, UnitRowsBackward);

/// Selects how a row x is scaled to length 1, and how a division by a length near 0 is avoided.
///
///     clamped   x / ‖x‖ if ‖x‖ > ε, else 0                                                              (1)
///     outside   x / (‖x‖ + ε)                                                                           (2)
///     inside    x / √(‖x‖² + ε)                                                                         (3)
///     none      x                                                                                       (4)
///
/// (1) equals x / max(‖x‖, ε) except for rows of length ε or less. These rows give 0 and get no gradient, because the
/// derivative of x / ε would be as large as 1/ε. Rows with a squared length that overflows (length above 1.8e19 in
/// float) give 0 or NaN.
enum class UnitNorm { clamped, outside, inside, none };

/// Scores by the cosine of the angle between the projected item W x[n] and a learned direction v_e of each expert, in a
/// space of `dim` dimensions.
///
///     r = W x[n],   z[n,e] = ⟨r, v_e⟩ / (τ ‖r‖ ‖v_e‖),   τ learned                                      (1)
///     r = W x[n],   z[n,e] = ⟨r, v_e⟩ / ‖v_e‖                                                           (2)
///
/// Source: (1) X-MoE, Chi et al. 2022, arXiv:2204.09179, sec. 3.2; (2) the code of X-MoE in torchscale (dim 16), and
/// CompeteSMoE (dim 8, as in `reference()`). `CosineScores::reference({…})` does not normalise items and has no
/// temperature. The code of X-MoE also sets the length of v_e to 1.5 in every forward pass, which changes no score;
/// this class does not. Under (1), if the length of r is at most epsilon, all scores of the item are 0, and these
/// scores pass no gradient.
/// @param dim          number of dimensions of W x
/// @param temperature  initial value of τ; 0: no temperature
/// @param unit_items   if true, divide by ‖r‖
/// @param x      [N, D] in   items
/// @param z      [N, E] out  logits
/// @throws ArgumentError unless model_dim, experts, dim >= 1, temperature >= 0 and finite, epsilon > 0, and x and the
///         parameters have the shapes that these options define
/// @cost   2·N·(D + E)·dim flop. `init` draws W from U(±1/√D) and v_e from N(0, 1/dim)
struct CosineScores {
  Index model_dim = 0, experts = 0, dim = 16;
  double temperature = 0.07, epsilon = 1e-12;
  bool unit_items = true;

  static CosineScores reference() { return reference({.dim = 8}); }
  static CosineScores reference(CosineScores options) {
    options.temperature = 0, options.epsilon = 1e-4, options.unit_items = false;
    return options;
  }

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> projection;   // [D, dim]
    Tensor<T, 2, B> embedding;    // [E, dim]
    Tensor<T, 1, B> temperature;  // [1], or [0] if there is no temperature
    GATEFOLD_PACK(projection, embedding, temperature)
    static constexpr int expert_extents[] = {-1, 0, -1};
  };

  CosineScores with_model_dim(Index width) const { return fill_model_dim(*this, "CosineScores", width); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("CosineScores.init", {{"model_dim", model_dim}, {"experts", experts}, {"dim", dim}});
    expect_options();
    Params<T, B> p{uniform_tensor<T>(ctx, seed.fork(0), 1 / std::sqrt(static_cast<double>(model_dim)), model_dim, dim),
                   Tensor<T, 2, B>(experts, dim), constant_tensor<T>(ctx, temperature, has_temperature())};
    fill_normal(ctx, seed.fork(1), 1 / std::sqrt(static_cast<double>(dim)), p.embedding);
    return p;
  }

  template <class T, class B>
  void validate(const Params<T, B>& p) const {
    expect_options();
    expect_shape("CosineScores", "params.projection", p.projection, {model_dim, dim});
    expect_shape("CosineScores", "params.embedding", p.embedding, {experts, dim});
    expect_shape("CosineScores", "params.temperature", p.temperature, {has_temperature()});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z) const {
    validate(p);
    auto mark = ctx.mark();
    const auto s = sides<T, B>(ctx, p, x);
    B::gemm(ctx, s.item, false, s.expert, true, false, z, functor::Store{});
  }

  /// Adds the gradients of x and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads) const {
    auto mark = ctx.mark();
    const auto s = sides<T, B>(ctx, p, x);
    const auto ditem = items_backward<T, B>(ctx, p, s, dz, dx);
    if (!grads.projection.is_skipped())
      B::gemm(ctx, x, true, ditem.projected, false, true, grads.projection.view(), functor::Store{});
    if (has_temperature() && !grads.temperature.is_skipped()) {
      auto dinverse = ctx.template scratch<T>(1);
      fill(ctx, dinverse, 0);
      B::template reduce<T>(ctx, x.extent(0), functor::UnitRowsScale<T, B>{s.projected, of_items<T>(), ditem.item},
                            dinverse.data());
      B::for_each(ctx, 1, functor::InverseBackward<T>{s.scale, dinverse.data(), grads.temperature.data()});
    }
    if (grads.embedding.is_skipped()) return;
    auto dexpert = ctx.template scratch<T>(experts, dim);
    B::gemm(ctx, dz, true, s.item, false, false, dexpert, functor::Store{});
    B::for_rows(ctx, experts,
                functor::UnitRowsBackward<T, B>{p.embedding, of_experts<T>(), nullptr, dexpert, grads.embedding});
  }
  /// Adds the gradient of x to dx, and computes no gradient of the parameters.
  template <class T, class B>
  void backward_items(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz,
                      Out<T, 2, B> dx) const {
    auto mark = ctx.mark();
    items_backward<T, B>(ctx, p, sides<T, B>(ctx, p, x), dz, dx);
  }

 private:
  /// The factors of the scalar products of CosineScores: the normalised items times 1/τ (`item`) and the normalised
  /// directions of the experts (`expert`). items_backward returns gradients in the same struct.
  template <class T, class B>
  struct Sides {
    View<const T, 2, B> projected, item, expert;  // r = W x [N, dim], r / (τ ‖r‖) [N, dim], v / ‖v‖ [E, dim]
    const T* scale;                               // 1/τ; null: no temperature
  };
  void expect_options() const {
    expect(temperature >= 0, "CosineScores", "temperature", "at least 0", temperature);
    expect_finite("CosineScores", "temperature", temperature);
    expect_positive("CosineScores", "epsilon", epsilon);
  }
  Index has_temperature() const { return temperature > 0 ? 1 : 0; }
  template <class T>
  functor::UnitFactor<T> of_items() const {
    return {unit_items ? UnitNorm::clamped : UnitNorm::none, T(epsilon)};
  }
  template <class T>
  functor::UnitFactor<T> of_experts() const {
    return {UnitNorm::clamped, T(epsilon)};
  }
  template <class T, class B>
  Sides<T, B> sides(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x) const {
    auto projected = ctx.template scratch<T>(x.extent(0), dim), item = ctx.template scratch<T>(x.extent(0), dim);
    auto expert = ctx.template scratch<T>(experts, dim);
    auto inverse = ctx.template scratch<T>(has_temperature());
    B::gemm(ctx, x, false, p.projection.view(), false, false, projected, functor::Store{});
    B::for_each(ctx, has_temperature(), functor::Inverse<T>{p.temperature.data(), inverse.data()});
    const T* scale = has_temperature() ? inverse.data() : nullptr;
    B::for_rows(ctx, x.extent(0), functor::UnitRows<T, B>{projected, of_items<T>(), scale, item});
    B::for_rows(ctx, experts, functor::UnitRows<T, B>{p.embedding, of_experts<T>(), nullptr, expert});
    return {projected, item, expert, scale};
  }
  /// Adds the gradient of the items x to dx. Returns the gradients of s.projected and s.item in the members of the same
  /// names.
  template <class T, class B>
  Sides<T, B> items_backward(typename B::Context& ctx, const Params<T, B>& p, const Sides<T, B>& s, In<T, 2, B> dz,
                             Out<T, 2, B> dx) const {
    auto dprojected = ctx.template scratch<T>(dx.extent(0), dim), ditem = ctx.template scratch<T>(dx.extent(0), dim);
    B::gemm(ctx, dz, false, s.expert, false, false, ditem, functor::Store{});
    fill(ctx, dprojected, 0);
    B::for_rows(ctx, dx.extent(0),
                functor::UnitRowsBackward<T, B>{s.projected, of_items<T>(), s.scale, ditem, dprojected});
    B::gemm(ctx, View<const T, 2, B>(dprojected), false, p.projection.view(), true, true, dx, functor::Store{});
    return {dprojected, ditem, {}, nullptr};
  }
};

namespace functor {

/// Writes inverse = 1 / value, for the learned temperature.
template <class T>
struct Inverse {
  const T* value;
  T* inverse;
  GATEFOLD_HD void operator()(Index) const { *inverse = 1 / *value; }
};
/// Backward pass of Inverse (inverse = 1 / value): subtracts inverse² · dinverse from dvalue, the gradient of the
/// value.
template <class T>
struct InverseBackward {
  const T *inverse, *dinverse;
  T* dvalue;
  GATEFOLD_HD void operator()(Index) const { *dvalue -= *inverse * *inverse * *dinverse; }
};

/// Computes two factors for a row x that is scaled to length 1. f is the factor in the result û = f x. h is the factor
/// in the gradient dx = f · (dû − h ⟨x, dû⟩ û). The functions f and h take ‖x‖² as argument (`square`).
template <class T>
struct UnitFactor {
  UnitNorm form;
  T epsilon;

  GATEFOLD_HD T f(T square) const {
    if (form == UnitNorm::none) return 1;
    if (form == UnitNorm::inside) return 1 / std::sqrt(square + epsilon);
    const T length = std::sqrt(square);
    if (form == UnitNorm::outside) return 1 / (length + epsilon);
    return length <= epsilon ? T(0) : 1 / length;
  }
  GATEFOLD_HD T h(T square) const {
    if (form == UnitNorm::none) return 0;
    return form != UnitNorm::outside ? f(square) : square > 0 ? 1 / std::sqrt(square) : T(0);
  }
};

/// Writes each row of x, scaled to length 1 (UnitNorm) and multiplied by `scale`, to `unit`. `scale` points to memory
/// of the backend; null means 1.
template <class T, class B>
struct UnitRows {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  const T* scale;
  View<T, 2, B> unit;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T square = 0;
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) square += x(n, d) * x(n, d);
    const T f = (scale ? *scale : T(1)) * factor.f(lanes.sum(square));
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) unit(n, d) = f * x(n, d);
  }
};

/// Backward pass of UnitRows: adds scale · f (dunit[n,:] − h ⟨x, dunit⟩ f x[n,:]) to dx[n,:]. dunit is the gradient of
/// the scaled rows; f and h are the factors of UnitFactor.
template <class T, class B>
struct UnitRowsBackward {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  const T* scale;
  View<const T, 2, B> dunit;
  View<T, 2, B> dx;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T square = 0, dot = 0;
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size) {
      square += x(n, d) * x(n, d);
      dot += x(n, d) * dunit(n, d);
    }
    square = lanes.sum(square);
    const T s = scale ? *scale : T(1), f = factor.f(square), along = factor.h(square) * lanes.sum(dot);
    for (Index d = lanes.lane; d < x.extent(1); d += lanes.size)
      dx(n, d) += s * f * (dunit(n, d) - along * (f * x(n, d)));
  }
};

/// Returns the contribution of row n to the gradient of the factor `scale` of UnitRows. It is the scalar product of the
/// row, scaled to length 1, and the gradient dunit[n,:] of the scaled row.
template <class T, class B>
struct UnitRowsScale {
  View<const T, 2, B> x;
  UnitFactor<T> factor;
  View<const T, 2, B> dunit;

  GATEFOLD_HD T operator()(Index n) const {
    T square = 0, dot = 0;
    for (Index d = 0; d < x.extent(1); ++d) {
      square += x(n, d) * x(n, d);
      dot += x(n, d) * dunit(n, d);
    }
    return factor.f(square) * dot;
  }
};

}  // namespace functor

}  // namespace gatefold
