#pragma once

#include <cmath>

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), RootMeanSquare, RootMeanSquareBackward);

/// Scales each item to a root mean square of 1, then applies a learned gain: LayerNorm without mean and bias. Use
/// RmsNorm as the norm of a layer, or inside larger experts, where each expert e has its own gain.
///
///     z[s] = x / √(mean x² + ε) ⊙ gain_e                                                                (1)
///
/// Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. (4). The ε is added to the mean square, as in
/// torch.nn.RMSNorm, whose default ε is 1.2e-7 for float.
///
/// RmsNorm is an expert policy. As a layer, or in PreNorm, it has one expert. If the squares of an item's values
/// overflow (|x| > 1e19 in float), the output z[s] is 0.
/// @param x [N, D] in items, z [S, D] out;  gain starts as 1
/// @param saved  1 / √(mean x² + ε) [S]
/// @throws ArgumentError unless model_dim >= 1 (layers such as PreNorm replace 0 by their width), the gain is [E, D],
///         and epsilon is finite and > 0. A positive epsilon keeps the result for an item of zeros finite
/// @cost   about 5·S·D flop
struct RmsNorm {
  Index model_dim = 0;
  double epsilon = 1e-6;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> gain;  // [E, D]
    GATEFOLD_PACK(gain)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 1, B> inverse;  // [S]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  RmsNorm with_model_dim(Index width) const { return fill_model_dim(*this, "RmsNorm", width, "branch"); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed) const {
    expect_options("RmsNorm.init");
    return {constant_tensor<T>(ctx, 1, experts, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options("RmsNorm");
    expect_shape("RmsNorm", "params.gain", p.gain, {experts, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    saved.inverse.resize(groups.slots);
    B::for_rows(ctx, groups.slots, functor::RootMeanSquare<T, B>{groups, x, p.gain, T(epsilon), z, saved.inverse});
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    B::for_rows(ctx, groups.slots, functor::RootMeanSquare<T, B>{groups, x, p.gain, T(epsilon), z, {}});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("RmsNorm.backward", "saved.inverse", saved.inverse, {groups.slots});
    auto mark = ctx.mark();
    auto scaled = ctx.template scratch<T>(groups.slots, model_dim);
    B::for_rows(ctx, groups.slots,
                functor::RootMeanSquareBackward<T, B>{groups, x, p.gain, dz, saved.inverse, dslots, scaled});
    if (!grads.gain.is_skipped())
      B::grouped_sum(ctx, groups.in_slot_order(), View<const T, 2, B>(scaled), grads.gain.view());
  }

 private:
  void expect_options(const char* where) const {
    expect(model_dim >= 1, where, "model_dim", "at least 1", model_dim);
    expect_positive(where, "epsilon", epsilon);
  }
};

namespace functor {

/// Computes RMS normalisation for slot s, with the item x and the expert e of the slot: inverse[s] = 1 / √(mean x² +
/// ε),   z[s] = x inverse[s] ⊙ gain[e].
template <class T, class B>
struct RootMeanSquare {
  Groups<B> groups;
  View<const T, 2, B> x, gain;
  T epsilon;
  View<T, 2, B> z;
  View<T, 1, B> inverse;  // empty: not saved

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1);
    if (e < 0) return;
    const T *const row = &x(groups.row(s), 0), *const by = &gain(e, 0);
    T* const out = &z(s, 0);
    const T mean =
        sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(row + j) * at.load(row + j); }) /
        T(columns);
    const T scale = 1 / std::sqrt(mean + epsilon);
    each_column<T>(lanes, columns,
                   [&](const auto& at, Index j) { at.store(out + j, at.load(row + j) * scale * at.load(by + j)); });
    if (lanes.lane == 0 && !inverse.empty()) inverse(s) = scale;
  }
};
/// Backward pass of RMS normalisation for slot s, whose item is x. With x̂ = x inverse[s] and g = dz[s] ⊙ gain[e],
/// writes dslots[s] = (g − x̂ mean(g x̂)) inverse[s] and scaled[s] = dz[s] ⊙ x̂. The gradient of gain[e] is the sum of
/// `scaled` over the slots of expert e.
template <class T, class B>
struct RootMeanSquareBackward {
  Groups<B> groups;
  View<const T, 2, B> x, gain, dz;
  View<const T, 1, B> inverse;
  View<T, 2, B> dslots, scaled;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1);
    if (e < 0) return;
    const T *const row = &x(groups.row(s), 0), *const by = &gain(e, 0), *const d = &dz(s, 0), scale = inverse(s);
    T *const sum = &scaled(s, 0), *const to = &dslots(s, 0);
    const T along = sum_columns<T>(lanes, columns,
                                   [&](const auto& at, Index j) {
                                     const auto v = at.load(d + j) * (at.load(row + j) * scale);
                                     at.store(sum + j, v);
                                     return v * at.load(by + j);
                                   }) /
                    T(columns);
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(to + j, scale * (at.load(d + j) * at.load(by + j) - at.load(row + j) * scale * along));
    });
  }
};

}  // namespace functor

}  // namespace gatefold
