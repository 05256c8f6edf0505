#pragma once

#include <cmath>

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace fn {

/// One row: unit = (x − mean x) / √(var x + ε).
/// @return 1 / √(var x + ε)
template <class T, class Lanes>
GATEFOLD_HD T standardise(const Lanes& lanes, Index columns, const T* x, T epsilon, T* unit) {
  const T mean = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(x + j); }) / T(columns);
  const auto centred = [&](const auto& at, Index j) { return at.load(x + j) - mean; };
  const T variance = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
    const auto v = centred(at, j);
    return v * v;
  }) / T(columns);
  const T scale = 1 / std::sqrt(variance + epsilon);
  each_column<T>(lanes, columns, [&](const auto& at, Index j) { at.store(unit + j, centred(at, j) * scale); });
  return scale;
}
/// Of one row, g = dy ⊙ gain: dx = (g − mean(g) − unit mean(g unit)) / √(var x + ε).
template <class T>
struct StandardiseAdjoint {
  T mean, slope;  // mean(g), mean(g unit)
  template <class V>
  GATEFOLD_HD V operator()(T inverse, V g, V unit) const {
    return inverse * (g - mean - unit * slope);
  }
};
/// Also writes scaled = dy ⊙ unit, which is summed into dgain.
template <class T, class Lanes>
GATEFOLD_HD StandardiseAdjoint<T> standardise_adjoint(const Lanes& lanes, Index columns, const T* unit, const T* gain,
                                                      const T* dy, T* scaled) {
  const T mean = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
    at.store(scaled + j, at.load(dy + j) * at.load(unit + j));
    return at.load(dy + j) * at.load(gain + j);
  });
  const T slope = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {  // each lane reads what it wrote
    return at.load(scaled + j) * at.load(gain + j);
  });
  return {mean / T(columns), slope / T(columns)};
}

/// unit[s] = (x − mean x) / √(var x + ε),   inverse[s] = 1 / √(var x + ε)
template <class T, class B>
struct Standardise {
  Groups<B> groups;
  View<const T, 2, B> x;
  T epsilon;
  View<T, 2, B> unit;
  View<T, 1, B> inverse;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    if (groups.expert(s) < 0) return;
    const T scale = standardise(lanes, x.extent(1), &x(groups.row(s), 0), epsilon, &unit(s, 0));
    if (lanes.lane == 0) inverse(s) = scale;
  }
};
/// y[s] = unit[s] ⊙ gain[e] + bias[e]
template <class T, class B>
struct GainBias {
  Groups<B> groups;
  View<const T, 2, B> gain, bias, unit;
  View<T, 2, B> y;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    const Index e = groups.expert(s);
    if (e < 0) return;
    each_column<T>(lanes, y.extent(1), [&](const auto& at, Index j) {
      at.store(&y(s, j), at.load(&unit(s, j)) * at.load(&gain(e, j)) + at.load(&bias(e, j)));
    });
  }
};
/// dx of standardise_adjoint
template <class T, class B>
struct StandardiseBackward {
  Groups<B> groups;
  View<const T, 2, B> unit, gain, dy;
  View<const T, 1, B> inverse;
  View<T, 2, B> dx, scaled;

  template <class Lanes>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index s) const {
    const Index columns = unit.extent(1), e = groups.expert(s);
    if (e < 0) return;
    const auto adjoint = standardise_adjoint(lanes, columns, &unit(s, 0), &gain(e, 0), &dy(s, 0), &scaled(s, 0));
    const T scale = inverse(s);
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(&dx(s, j), adjoint(scale, at.load(&dy(s, j)) * at.load(&gain(e, j)), at.load(&unit(s, j))));
    });
  }
};

}  // namespace fn

/// Layer normalisation with a gain and a bias per expert: a part of experts that are networks.
///
///     x̂ = (x − mean x) / √(var x + ε),   z[s] = x̂ ⊙ gain_e + bias_e                                     (1)
///
/// Source: Ba et al. 2016, arXiv:1607.06450. The variance divides by D, as in torch.nn.LayerNorm.
/// @param x [N, D] in items, z [S, D] out;  gain starts as 1, bias as 0
/// @param saved  x̂ [S, D] and 1/√(var + ε) [S]
/// @throws ArgumentError unless model_dim >= 1 and epsilon > 0, which keeps a constant item finite
/// @cost   about 8·S·D flop
struct NormExpert {
  Index model_dim = 0;
  double epsilon = 1e-5;

  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> gain, bias;  // [E, D]
    template <class F, class... P>
    static void each(F&& f, P&... p) {
      f("gain", p.gain...);
      f("bias", p.bias...);
    }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> unit;     // [S, D]
    Tensor<T, 1, B> inverse;  // [S]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed) const {
    validate_options("NormExpert.init");
    return {constant_tensor<T>(ctx, 1, experts, model_dim), constant_tensor<T>(ctx, 0, experts, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    validate_options("NormExpert");
    expect_shape("NormExpert", "params.gain", p.gain, {experts, model_dim});
    expect_shape("NormExpert", "params.bias", p.bias, {experts, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    saved.unit.resize(groups.slots, model_dim);
    saved.inverse.resize(groups.slots);
    B::for_rows(ctx, groups.slots, fn::Standardise<T, B>{groups, x, T(epsilon), saved.unit, saved.inverse});
    again(ctx, p, groups, saved, z);
  }
  /// The same z from what was kept.
  template <class T, class B>
  void again(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, const Saved<T, B>& saved,
             Out<T, 2, B> z) const {
    B::for_rows(ctx, groups.slots, fn::GainBias<T, B>{groups, p.gain, p.bias, saved.unit, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B>, const Saved<T, B>& saved,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    auto scaled = ctx.template scratch<T>(groups.slots, model_dim);
    B::for_rows(ctx, groups.slots,
                fn::StandardiseBackward<T, B>{groups, saved.unit, p.gain, dz, saved.inverse, dslots, scaled});
    B::grouped_sum(ctx, groups.in_slot_order(), View<const T, 2, B>(scaled), grads.gain.view());
    B::grouped_sum(ctx, groups.in_slot_order(), dz, grads.bias.view());
  }

 private:
  void validate_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect(epsilon > 0, where, "epsilon", "more than 0", epsilon);
  }
};

}  // namespace gatefold
