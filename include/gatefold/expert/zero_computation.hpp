#pragma once

#include <cmath>
#include <utility>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// The experts of MoE++ that compute almost nothing. They are kinds of `Experts` next to experts with matrix products:
/// `Experts{std::tuple{GatedMlp<Silu>{8, 16}, ZeroExpert{8}, CopyExpert{8}, ConstantExpert{8}}, {8, 1, 1, 2}}`. An item
/// that a gate sends to them costs little, so easy items need less work than difficult ones.
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SlotRow, MixConstant, MixConstantBackward);

/// An expert whose output is 0.
///
///     z[s] = 0                                                                                          (1)
///
/// Source: Jin et al. 2024 (MoE++), arXiv:2410.07348, sec. 3.1.
/// @param x [N, D] in items, z [S, D] out
/// @throws ArgumentError unless model_dim >= 1
/// @cost   writes S·D zeros
struct ZeroExpert {
  Index model_dim = 0;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Nothing<T, B> init(typename B::Context&, Index, Seed) const {
    expect(model_dim >= 1, "ZeroExpert.init", "model_dim", "at least 1", model_dim);
    return {};
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, Groups<B> groups, In<T, 2, B>, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    B::for_rows(ctx, groups.slots, functor::SlotRow<T, B>{groups, {}, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, Groups<B> groups, In<T, 2, B>, const Nothing<T, B>&,
                In<T, 2, B>, Out<T, 2, B> dslots, Nothing<T, B>&) const {
    B::for_rows(ctx, groups.slots, functor::SlotRow<T, B>{groups, {}, dslots});
  }
};

/// An expert whose output is its input.
///
///     z[s] = x[row(s)]                                                                                  (2)
///
/// Source: Jin et al. 2024 (MoE++), arXiv:2410.07348, sec. 3.1.
/// @param x [N, D] in items, z [S, D] out
/// @throws ArgumentError unless model_dim >= 1
/// @cost   copies S·D values
struct CopyExpert {
  Index model_dim = 0;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Nothing<T, B> init(typename B::Context&, Index, Seed) const {
    expect(model_dim >= 1, "CopyExpert.init", "model_dim", "at least 1", model_dim);
    return {};
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    B::for_rows(ctx, groups.slots, functor::SlotRow<T, B>{groups, x, z});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, Groups<B> groups, In<T, 2, B>, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Nothing<T, B>&) const {
    B::for_rows(ctx, groups.slots, functor::SlotRow<T, B>{groups.in_slot_order(), dz, dslots});
  }
};

/// An expert that mixes its input x and a learned constant v_e. Their shares α₁ and α₂ are the softmax of two scores,
/// which a learned matrix W_e [2, D] computes from x.
///
///     z[s] = α₁ x[row(s)] + α₂ v_e,   (α₁, α₂) = softmax(W_e x[row(s)])                                 (3)
///
/// Source: Jin et al. 2024 (MoE++), arXiv:2410.07348, sec. 3.1.
/// @param x [N, D] in items, z [S, D] out;  v_e starts as N(0, 1), W_e as U(±1/√D)
/// @param saved  α₁ [S]
/// @throws ArgumentError unless model_dim >= 1
/// @cost   about 7·S·D flop
struct ConstantExpert {
  Index model_dim = 0;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 3, B> weight;    // [E, 2, D]
    Tensor<T, 2, B> constant;  // [E, D]
    GATEFOLD_PACK(weight, constant)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 1, B> share;  // [S]
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect(model_dim >= 1, "ConstantExpert.init", "model_dim", "at least 1", model_dim);
    const double spread = 1 / std::sqrt(static_cast<double>(model_dim));
    Tensor<T, 2, B> constant(experts, model_dim);
    fill_normal(ctx, seed.fork(1), 1, constant);
    return {uniform_tensor<T>(ctx, seed.fork(0), spread, experts, 2, model_dim), std::move(constant)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_shape("ConstantExpert", "params.weight", p.weight, {experts, 2, model_dim});
    expect_shape("ConstantExpert", "params.constant", p.constant, {experts, model_dim});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    saved.share.resize(groups.slots);
    B::for_rows(ctx, groups.slots, functor::MixConstant<T, B>{groups, x, p.weight, p.constant, z, saved.share});
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    B::for_rows(ctx, groups.slots, functor::MixConstant<T, B>{groups, x, p.weight, p.constant, z, {}});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("ConstantExpert.backward", "saved.share", saved.share, {groups.slots});
    auto mark = ctx.mark();
    auto dscores = ctx.template scratch<T>(groups.slots, 2),
         dconstant = ctx.template scratch<T>(groups.slots, model_dim);
    B::for_rows(ctx, groups.slots,
                functor::MixConstantBackward<T, B>{groups, x, p.weight, p.constant, saved.share, dz, dslots, dscores,
                                                   dconstant});
    const Groups<B> slots = groups.in_slot_order();
    add_weight_gradient<FullPrecision<B>>(ctx, slots, View<const T, 2, B>(dscores), x, grads.weight, groups.rows);
    if (!grads.constant.is_skipped()) B::grouped_sum(ctx, slots, View<const T, 2, B>(dconstant), grads.constant.view());
  }
};

namespace functor {

/// Copies the item of slot s to the slot: to[s] = from[row(s)]. Writes to[s] = 0 if `from` is empty.
template <class T, class B>
struct SlotRow {
  Groups<B> groups;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (groups.expert(s) < 0) return;
    const Index columns = to.extent(1);
    T* const row = to.data() + s * columns;
    if (!from.data()) return zero_columns(lanes, row, columns);
    const T* const item = from.data() + groups.row(s) * columns;
    each_column<T>(lanes, columns, [&](const auto& at, Index j) { at.store(row + j, at.load(item + j)); });
  }
};
/// Computes the output of a ConstantExpert for slot s: z[s] = α₁ x[row(s)] + (1 − α₁) v_e. The softmax of two scores is
/// a sigmoid of their difference. Stores α₁ for backward if `share` is not empty.
template <class T, class B>
struct MixConstant {
  Groups<B> groups;
  View<const T, 2, B> x;
  View<const T, 3, B> weight;
  View<const T, 2, B> constant;
  View<T, 2, B> z;
  View<T, 1, B> share;  // [S] α₁; empty: not stored

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1);
    if (e < 0) return;
    const T *const item = x.data() + groups.row(s) * columns, *const w = weight.data() + e * 2 * columns,
                   *const v = constant.data() + e * columns;
    const T difference = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
      return at.load(item + j) * (at.load(w + j) - at.load(w + columns + j));
    });
    const T first = functor::math::sigmoid(difference), second = 1 - first;
    T* const out = z.data() + s * columns;
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(out + j, at.load(item + j) * first + at.load(v + j) * second);
    });
    if (lanes.lane == 0 && !share.empty()) share(s) = first;
  }
};
/// Computes the backward pass of a ConstantExpert for slot s, with the shares α₁ and α₂ = 1 − α₁:
///
///     dscores[s] = (d, −d),   d = α₁ α₂ ⟨dz[s], x − v_e⟩,   dconstant[s] = α₂ dz[s],
///     dslots[s] = α₁ dz[s] + d (W_e[0] − W_e[1])
template <class T, class B>
struct MixConstantBackward {
  Groups<B> groups;
  View<const T, 2, B> x;
  View<const T, 3, B> weight;
  View<const T, 2, B> constant;
  View<const T, 1, B> share;
  View<const T, 2, B> dz;
  View<T, 2, B> dslots, dscores, dconstant;  // [S, D], [S, 2], [S, D]

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1);
    if (e < 0) return;
    const T *const item = x.data() + groups.row(s) * columns, *const w = weight.data() + e * 2 * columns,
                   *const v = constant.data() + e * columns, *const given = dz.data() + s * columns;
    const T first = share(s), second = 1 - first;
    T *const to = dslots.data() + s * columns, *const of_constant = dconstant.data() + s * columns;
    const T along = sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
      const auto g = at.load(given + j);
      at.store(of_constant + j, g * second);
      return g * (at.load(item + j) - at.load(v + j));
    });
    const T d = first * second * along;
    each_column<T>(lanes, columns, [&](const auto& at, Index j) {
      at.store(to + j, at.load(given + j) * first + (at.load(w + j) - at.load(w + columns + j)) * d);
    });
    if (lanes.lane > 0) return;
    dscores(s, 0) = d;
    dscores(s, 1) = -d;
  }
};

}  // namespace functor

}  // namespace gatefold
