#pragma once

#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/one_group.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/norm_expert.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace fn {

template <class T, class B>
struct Normalise {
  View<const T, 2, B> x;
  View<const T, 1, B> gain, bias;
  T epsilon;
  View<T, 2, B> unit, y;  // may be one
  View<T, 1, B> inverse;  // or empty: not kept

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const T scale = standardise(lanes, x.extent(1), &x(n, 0), epsilon, &unit(n, 0));
    each_column<T>(lanes, x.extent(1), [&](const auto& at, Index j) {
      at.store(&y(n, j), at.load(&unit(n, j)) * at.load(&gain(j)) + at.load(&bias(j)));
    });
    if (lanes.lane == 0 && !inverse.empty()) inverse(n) = scale;
  }
};
/// dx += that of standardise_adjoint
template <class T, class B>
struct NormaliseBackward {
  View<const T, 2, B> unit, dy;
  View<const T, 1, B> gain, inverse;
  View<T, 2, B> dx, scaled;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n) const {
    const Index columns = unit.extent(1);
    const auto adjoint = standardise_adjoint(lanes, columns, &unit(n, 0), gain.data(), &dy(n, 0), &scaled(n, 0));
    const T scale = inverse(n);
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      const auto g = at.load(&dy(n, j)) * at.load(&gain(j));
      at.store(&dx(n, j), at.load(&dx(n, j)) + adjoint(scale, g, at.load(&unit(n, j))));
    });
  }
};

}  // namespace fn

/// Normalise each item to mean 0 and variance 1, then scale and shift.
///
///     x̂ = (x − mean x) / √(var x + ε),   y = x̂ ⊙ gain + bias                                            (1)
///
/// Source: Ba et al. 2016, arXiv:1607.06450. The variance divides by D, as in torch.nn.LayerNorm.
/// @param x [N, D] in, y [N, D] out;  gain starts as 1, bias as 0
/// @throws ArgumentError unless model_dim >= 1 (0: deduced inside PreNorm), epsilon > 0, which keeps a constant item finite,
///         and shapes fit
/// @cost   about 8·N·D flop
struct LayerNorm {
  Index model_dim = 0;
  double epsilon = 1e-5;

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> gain, bias;  // [D]
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("gain", p.gain...);
      f("bias", p.bias...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> unit;     // [N, D]
    Tensor<T, 1, B> inverse;  // [N] 1 / √(var + ε)
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  LayerNorm with_model_dim(Index width) const {
    expect(model_dim == 0 || model_dim == width, "LayerNorm", "model_dim", Joined{width, " (the branch's)"},
           model_dim);
    return {width, epsilon};
  }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    validate_options("LayerNorm.init");
    return {constant_tensor<T>(ctx, 1, model_dim), constant_tensor<T>(ctx, 0, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Nothing<T, B>&) const {
    validate_options("LayerNorm");
    expect_shape("LayerNorm", "params.gain", p.gain, {model_dim});
    expect_shape("LayerNorm", "params.bias", p.bias, {model_dim});
  }

  template <class T, class B, class Step = fn::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> y, Saved<T, B>& saved,
               const Nothing<T, B>&,
               const Step& step = {}) const {
    validate_forward(p, x, y);
    saved.unit.resize(x.extent(0), model_dim);
    saved.inverse.resize(x.extent(0));
    B::for_rows(ctx, x.extent(0), fn::Normalise<T, B>{x, p.gain, p.bias, T(epsilon), saved.unit, y, saved.inverse});
    run_step(ctx, y, step);
  }
  template <class T, class B, class Step = fn::NoStep<T>>
  void infer(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> y,
             const Nothing<T, B>&,
             const Step& step = {}) const {
    validate_forward(p, x, y);
    B::for_rows(ctx, x.extent(0), fn::Normalise<T, B>{x, p.gain, p.bias, T(epsilon), y, y, {}});
    run_step(ctx, y, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved,
                In<T, 2, B> dy, Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    validate(p, x.extent(0), Nothing<T, B>{});
    expect_like("LayerNorm.backward", "grads", p, grads);
    auto mark = ctx.mark();
    auto scaled = ctx.template scratch<T>(x.extent(0), model_dim);
    B::for_rows(ctx, x.extent(0),
                fn::NormaliseBackward<T, B>{saved.unit, dy, p.gain, saved.inverse, dx, scaled});
    const Groups<B> all = one_group(ctx, x.extent(0));
    B::grouped_sum(ctx, all, View<const T, 2, B>(scaled), grads.gain.view().as(1, model_dim));
    B::grouped_sum(ctx, all, dy, grads.bias.view().as(1, model_dim));
  }

 private:
  template <class T, class B>
  void validate_forward(const Params<T, B>& p, View<const T, 2, B> x, View<T, 2, B> y) const {
    expect_shape("LayerNorm.forward", "x", x, {any_extent, model_dim});
    expect_shape("LayerNorm.forward", "y", y, {x.extent(0), model_dim});
    expect_apart("LayerNorm.forward", "y", y, "x", x);
    validate(p, x.extent(0), Nothing<T, B>{});
  }
  void validate_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect(epsilon > 0, where, "epsilon", "more than 0", epsilon);
  }
};

}  // namespace gatefold
