#pragma once

#include <cmath>

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), Normalise, GainBias, NormaliseBackward);

/// Normalises each item to mean 0 and variance 1, then applies a learned gain and bias. Use LayerNorm as the norm of a
/// layer, or inside larger experts, where each expert e has its own gain and bias.
///
///     x̂ = (x − mean x) / √(var x + ε),   z[s] = x̂ ⊙ gain_e + bias_e                                     (1)
///
/// Source: Ba et al. 2016, arXiv:1607.06450. The variance divides by D, as in torch.nn.LayerNorm.
///
/// LayerNorm is an expert policy. As a layer, or in PreNorm, it has one expert. If the squares of an item's values
/// overflow (|x| > 1e19 in float), x̂ is 0. If the sum of the values overflows, x̂ is NaN.
/// @param x [N, D] in items, z [S, D] out;  gain starts as 1, bias as 0
/// @param saved  x̂ [S, D] and 1/√(var + ε) [S]
/// @throws ArgumentError unless model_dim >= 1 (layers such as PreNorm replace 0 by their width), gain and bias are
///         [E, D], and epsilon is finite and > 0. A positive epsilon keeps the result for a constant item finite
/// @cost   about 8·S·D flop
struct LayerNorm {
  Index model_dim = 0;
  double epsilon = 1e-5;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> gain, bias;  // [E, D]
    GATEFOLD_PACK(gain, bias)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> normalized;  // [S, D]
    Tensor<T, 1, B> inverse;     // [S]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  LayerNorm with_model_dim(Index width) const { return fill_model_dim(*this, "LayerNorm", width, "branch"); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed) const {
    expect_options("LayerNorm.init");
    return {constant_tensor<T>(ctx, 1, experts, model_dim), constant_tensor<T>(ctx, 0, experts, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("LayerNorm");
    expect_shape("LayerNorm", "params.gain", p.gain, {experts, model_dim});
    expect_shape("LayerNorm", "params.bias", p.bias, {experts, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    saved.normalized.resize(groups.slots, model_dim);
    saved.inverse.resize(groups.slots);
    normalise(ctx, p, groups, x, saved.normalized.view(), z, saved.inverse.view());
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    normalise(ctx, p, groups, x, z, z, {});
  }
  /// Recomputes the output z from the normalised items that forward saved, so that z itself need not be saved.
  template <class T, class B>
  void recompute(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, const Saved<T, B>& saved,
                 Out<T, 2, B> z) const {
    expect_shape("LayerNorm.recompute", "saved.normalized", saved.normalized, {groups.slots, model_dim});
    B::for_rows(ctx, groups.slots, functor::GainBias<T, B>{groups, p.gain, p.bias, saved.normalized, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B>,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("LayerNorm.backward", "saved.normalized", saved.normalized, {groups.slots, model_dim});
    expect_shape("LayerNorm.backward", "saved.inverse", saved.inverse, {groups.slots});
    auto mark = ctx.mark();
    auto scaled = ctx.template scratch<T>(groups.slots, model_dim);
    B::for_rows(ctx, groups.slots,
                functor::NormaliseBackward<T, B>{groups, saved.normalized, p.gain, dz, saved.inverse, dslots, scaled});
    if (!grads.gain.is_skipped())
      B::grouped_sum(ctx, groups.in_slot_order(), View<const T, 2, B>(scaled), grads.gain.view());
    if (!grads.bias.is_skipped()) B::grouped_sum(ctx, groups.in_slot_order(), dz, grads.bias.view());
  }

 private:
  template <class T, class B>
  void normalise(typename B::Context& ctx, const Params<T, B>& p, const Groups<B>& groups, In<T, 2, B> x,
                 Out<T, 2, B> normalized, Out<T, 2, B> y, Out<T, 1, B> inverse) const {
    B::for_rows(ctx, groups.slots,
                functor::Normalise<T, B>{groups, x, p.gain, p.bias, T(epsilon), normalized, y, inverse});
  }
  void expect_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect_positive(where, "epsilon", epsilon);
  }
};

namespace functor {

/// Computes layer normalisation for slot s, with the item x and the expert e of the slot: normalized[s] = (x − mean x)
/// / √(var x + ε), inverse[s] = 1 / √(var x + ε), and y[s] = normalized[s] ⊙ gain[e] + bias[e].
template <class T, class B>
struct Normalise {
  Groups<B> groups;
  View<const T, 2, B> x, gain, bias;
  T epsilon;
  View<T, 2, B> normalized, y;  // can be the same memory
  View<T, 1, B> inverse;        // empty: not saved

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1);
    if (e < 0) return;
    const T *const row = &x(groups.row(s), 0), *const by = &gain(e, 0), *const plus = &bias(e, 0);
    T *const to = &normalized(s, 0), *const out = &y(s, 0);
    const T mean =
        sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(row + j); }) / T(columns);
    const auto centred = [&](const auto& at, Index j) { return at.load(row + j) - mean; };
    const T variance = sum_columns<T>(lanes, columns,
                                      [&](const auto& at, Index j) {
                                        const auto v = centred(at, j);
                                        return v * v;
                                      }) /
                       T(columns);
    const T scale = 1 / std::sqrt(variance + epsilon);
    each_column<T>(lanes, columns, [&](const auto& at, Index j) { at.store(to + j, centred(at, j) * scale); });
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(out + j, at.load(to + j) * at.load(by + j) + at.load(plus + j));
    });
    if (lanes.lane == 0 && !inverse.empty()) inverse(s) = scale;
  }
};
/// Applies gain and bias of expert e to the normalised item of slot s: y[s] = normalized[s] ⊙ gain[e] + bias[e].
template <class T, class B>
struct GainBias {
  Groups<B> groups;
  View<const T, 2, B> gain, bias, normalized;
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s);
    if (e < 0) return;
    each_column<T>(lanes, y.extent(1), [&](const auto& at, Index j) {
      at.store(&y(s, j), at.load(&normalized(s, j)) * at.load(&gain(e, j)) + at.load(&bias(e, j)));
    });
  }
};
/// Computes the backward pass of layer normalisation for one slot. With g = dy ⊙ gain, writes dx = (g − mean(g) −
/// normalized mean(g normalized)) / √(var x + ε) and scaled = dy ⊙ normalized. The gradient of the gain of an expert is
/// the sum of `scaled` over its slots.
template <class T, class B>
struct NormaliseBackward {
  Groups<B> groups;
  View<const T, 2, B> normalized, gain, dy;
  View<const T, 1, B> inverse;
  View<T, 2, B> dx, scaled;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index columns = normalized.extent(1), e = groups.expert(s);
    if (e < 0) return;
    const T *const x = &normalized(s, 0), *const by = &gain(e, 0), *const d = &dy(s, 0);
    T *const sum = &scaled(s, 0), *const to = &dx(s, 0);
    const T total = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(sum + j, at.load(d + j) * at.load(x + j));
      return at.load(d + j) * at.load(by + j);
    });
    // This second loop needs no synchronisation, because each lane reads only elements of `scaled` that it wrote
    // itself.
    const T along =
        sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(sum + j) * at.load(by + j); });
    const T mean = total / T(columns), slope = along / T(columns), scale = inverse(s);
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(to + j, scale * (at.load(d + j) * at.load(by + j) - mean - at.load(x + j) * slope));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
