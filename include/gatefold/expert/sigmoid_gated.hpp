#pragma once

#include <utility>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SigmoidGate, SigmoidGateBackward, AddScoreAdjoint);

/// Wraps an expert, and multiplies its output by a learned gate, the sigmoid σ of an inner product of the item and a
/// vector g_e of expert e.
///
///     z[s] = σ(⟨x[row(s)], g_e⟩) · expert(x[row(s)])                                                      (1)
///
/// Source: the shared expert of Qwen1.5-MoE and Qwen2-MoE (shared_expert_gate of transformers' modeling_qwen2_moe.py):
/// `WithShared{Mixture{…}, SigmoidGated{GatedMlp<Silu>{…}}}`.
/// @param x [N, D] in items, z [S, out_dim] out
/// @param saved  the saved values of the inner expert, its output before the gate [S, out_dim], and the sigmoid [S]
/// @throws ArgumentError if the inner expert throws it, and unless g is [E, D, 1]
/// @cost   the cost of the inner expert, and 2·S·D flop
template <class ExpertT>
struct SigmoidGated {
  GATEFOLD_REQUIRE(
      !detail_::policy::is_misplaced<ExpertT>,
      "gatefold: SigmoidGated takes one expert: SigmoidGated{expert}; see docs/how-to/extending.md#expert");
  GATEFOLD_REQUIRE(!detail_::hook::expert::with_noise<ExpertT>(),
                   "gatefold: the expert inside needs noise, but SigmoidGated does not pass noise to it; see "
                   "docs/how-to/extending.md#expert");
  ExpertT expert;

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    gatefold::Params<ExpertT, T, B> expert;
    Tensor<T, 3, B> gate;  // [E, D, 1]
    GATEFOLD_PACK(expert, gate)
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<ExpertT, T, B> expert;
    Tensor<T, 2, B> ungated;  // [S, out_dim] output of the inner expert
    Tensor<T, 1, B> share;    // [S] the sigmoid
  };

  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return expert.out_dim(); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    auto inside = expert.template init<T, B>(ctx, experts, seed.fork(0));
    return {std::move(inside), initial_weights<T>(ctx, Initial{}, seed.fork(1), experts, in_dim(), 1)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    if constexpr (detail_::hook::expert::validate<ExpertT, T, B>()) expert.validate(p.expert, experts);
    expect_shape("SigmoidGated", "params.gate", p.gate, {experts, in_dim(), 1});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Saved<T, B>& saved) const {
    expert.forward(ctx, p.expert, groups, x, z, saved.expert);
    saved.ungated.resize(groups.slots, out_dim());
    saved.share.resize(groups.slots);
    B::for_rows(ctx, groups.slots, functor::SigmoidGate<T, B>{groups, x, p.gate, z, saved.ungated, saved.share});
  }
  template <class T, class B>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z) const {
    infer_expert<T, B>(expert, ctx, p.expert, groups, x, z);
    B::for_rows(ctx, groups.slots, functor::SigmoidGate<T, B>{groups, x, p.gate, z, {}, {}});
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const Saved<T, B>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    expect_shape("SigmoidGated.backward", "saved.ungated", saved.ungated, {groups.slots, out_dim()});
    expect_shape("SigmoidGated.backward", "saved.share", saved.share, {groups.slots});
    auto mark = ctx.mark();
    auto dungated = ctx.template scratch<T>(groups.slots, out_dim()), dscore = ctx.template scratch<T>(groups.slots, 1);
    B::for_rows(ctx, groups.slots,
                functor::SigmoidGateBackward<T, B>{groups, dz, saved.ungated, saved.share, dungated, dscore});
    expert.backward(ctx, p.expert, groups, x, saved.expert, dungated, dslots, grads.expert);
    B::for_rows(ctx, groups.slots, functor::AddScoreAdjoint<T, B>{groups, dscore, p.gate, dslots});
    add_weight_gradient<FullPrecision<B>>(ctx, groups, x, View<const T, 2, B>(dscore), grads.gate);
  }
};
template <class E>
SigmoidGated(E) -> SigmoidGated<E>;
template <class... P>
SigmoidGated(P...) -> SigmoidGated<detail_::policy::Misplaced<P...>>;

namespace detail_::policy {

template <class ExpertT>
struct Parts<SigmoidGated<ExpertT>> {
  template <class T, class B>
  static constexpr bool check() {
    return check_expert<ExpertT, T, B>();
  }
};

}  // namespace detail_::policy

namespace functor {

/// Multiplies the output z[s] of an expert e by a sigmoid gate of its item: share[s] = σ(⟨x[row(s)], gate[e]⟩),   z[s]
/// ← share[s] z[s]. If `share` and `ungated` are not empty, stores the value of the gate and the old z in them for
/// backward.
template <class T, class B>
struct SigmoidGate {
  Groups<B> groups;
  View<const T, 2, B> x;
  View<const T, 3, B> gate;
  View<T, 2, B> z, ungated;  // ungated: empty in inference
  View<T, 1, B> share;       // empty in inference

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = x.extent(1), outputs = z.extent(1);
    if (e < 0) return;
    const T *const row = x.data() + groups.row(s) * columns, *const by = gate.data() + e * columns;
    const T open = functor::math::sigmoid(
        sum_columns<T>(lanes, columns, [&](const auto& at, Index j) { return at.load(row + j) * at.load(by + j); }));
    T *const out = z.data() + s * outputs, *const kept = ungated.empty() ? nullptr : ungated.data() + s * outputs;
    each_column<T>(lanes, outputs, [&](const auto& at, Index j) {
      const auto value = at.load(out + j);
      if (kept) at.store(kept + j, value);
      at.store(out + j, value * open);
    });
    if (lanes.lane == 0 && !share.empty()) share(s) = open;
  }
};
/// Backward pass of a sigmoid gate for slot s. Writes the gradient of the expert's output, dungated[s] = share dz, and
/// the gradient of the argument of the sigmoid, dscore[s] = share (1 − share) ⟨dz, ungated⟩.
template <class T, class B>
struct SigmoidGateBackward {
  Groups<B> groups;
  View<const T, 2, B> dz, ungated;
  View<const T, 1, B> share;
  View<T, 2, B> dungated;
  View<T, 2, B> dscore;  // [S, 1]

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (groups.expert(s) < 0) return;
    const Index outputs = dz.extent(1);
    const T *const d = dz.data() + s * outputs, *const z = ungated.data() + s * outputs, open = share(s);
    T* const to = dungated.data() + s * outputs;
    const T along = sum_columns<T>(lanes, outputs, [&](const auto& at, Index j) {
      const auto v = at.load(d + j);
      at.store(to + j, v * open);
      return v * at.load(z + j);
    });
    if (lanes.lane == 0) dscore(s, 0) = open * (1 - open) * along;
  }
};
/// Adds the gradient of the item that flows through the sigmoid gate: dslots[s] += dscore[s] gate[e].
template <class T, class B>
struct AddScoreAdjoint {
  Groups<B> groups;
  View<const T, 2, B> dscore;
  View<const T, 3, B> gate;
  View<T, 2, B> dslots;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = groups.expert(s), columns = dslots.extent(1);
    if (e < 0) return;
    const T *const by = gate.data() + e * columns, d = dscore(s, 0);
    T* const to = dslots.data() + s * columns;
    each_column<T>(lanes, columns,
                   [&](const auto& at, Index j) { at.store(to + j, at.load(to + j) + d * at.load(by + j)); });
  }
};

}  // namespace functor

}  // namespace gatefold
