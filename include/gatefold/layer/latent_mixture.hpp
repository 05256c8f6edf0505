#pragma once

#include <type_traits>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gate.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/one_expert.hpp"

namespace gatefold {

/// A mixture of experts that work on fewer columns than the gate (LatentMoE). The gate reads the items, and the experts
/// read a learned projection of the items. A second projection maps the combined outputs back. It is a branch:
/// `LatentMixture{Mixture{gate, expert}, model_dim}`.
///
///     h[n] = x[n] W_down,   v[n] = Σ_e w[n,e] · expert_e(h[n]),   u[n] = v[n] W_up                      (1)
///
/// w are the weights of the gate for x[n], 0 for experts not picked. The width of h is the input width of the expert.
/// For example, this width is a quarter of model_dim. Then four times as many experts with the same hidden width need
/// as much memory as experts with input width model_dim. If the gate has model dimension 0, its dimension is set to
/// model_dim.
///
/// Source: LatentMoE, arXiv:2601.18089, as in NVIDIA Nemotron 3 (transformers' modeling_nemotron_h.py). For the shared
/// expert of these models, which reads x, use WithShared{LatentMixture{…}, expert}.
/// @param mixture  the gate and the experts. The plan of the gate (list of picks) must be a SparsePlan
/// @param bias     if true, both projections add a learned bias
/// @param x [N, model_dim] in, u [N, model_dim] out
/// @param extra  the extra inputs of the mixture
/// @throws ArgumentError if model_dim < 1, or a shape or an option is invalid, before anything is written
/// @cost   the gate, 2·N·D·(I + O) flop for the two projections, and the experts on S slots, with I = expert.in_dim and
///         O = expert.out_dim. forward keeps h [N, I] and v [N, O] for backward
template <class GateT, class ExpertT>
struct LatentMixture {
  static_assert(detail_::policy::in_order<LatentMixture>);
  Mixture<GateT, ExpertT> mixture;
  Index model_dim = 0;
  bool bias = false;  // if true, W_down and W_up have a bias

  template <class T, class B>
  struct Params {
    gatefold::Params<OneExpert<Linear>, T, B> down;           // [1, D, expert.in_dim]
    gatefold::Params<Mixture<GateT, ExpertT>, T, B> mixture;  // its tensor names begin with `gate` and `expert`
    gatefold::Params<OneExpert<Linear>, T, B> up;             // [1, expert.out_dim, D]
    static void each(auto&& f, auto&... p) {
      f("down", p.down...);
      f("", p.mixture...);
      f("up", p.up...);
    }
  };
  template <class T, class B>
  struct Saved {
    gatefold::Saved<Mixture<GateT, ExpertT>, T, B> mixture;
    Tensor<T, 2, B> latent;    // [N, expert.in_dim] h
    Tensor<T, 2, B> combined;  // [N, expert.out_dim] v
    void mixtures(auto&& f) const { f(mixture); }
  };
  template <class T, class B>
  using Extra = gatefold::Extra<Mixture<GateT, ExpertT>, T, B>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  Index experts() const { return count_experts(gate()); }

  GATEFOLD_INIT(LatentMixture) {
    const auto here = ctx.here();
    expect_dim();
    return {down().template init<T, B>(ctx, seed.fork(1)), mixture.template init_with<T, B>(ctx, gate(), seed.fork(0)),
            up().template init<T, B>(ctx, seed.fork(2))};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_dim();
    down().validate(p.down, items, Nothing<T, B>{});
    mixture.validate_with(p.mixture, gate(), items, extra);
    up().validate(p.up, items, Nothing<T, B>{});
  }

  GATEFOLD_BRANCH_PASSES(LatentMixture)

 private:
  GATEFOLD_RUN_BRANCH {
    auto mark = ctx.mark();
    const auto latent = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::latent, x.extent(0), mixture.in_dim());
    const auto combined = keep_or_scratch<T, B>(ctx, keep, &Saved<T, B>::combined, x.extent(0), mixture.out_dim());
    const functor::NoStep<T> no_step{};
    run_branch<T, B>(down(), ctx, p.down, x, latent, nullptr, Nothing<T, B>{});
    if constexpr (std::is_null_pointer_v<Keep>) {
      auto plan = ctx.template acquire<gatefold::Plan<GateT, T, B>>();
      infer_gate<T, B>(gate(), ctx, p.mixture.gate, x, *plan, mixture.of_gate(extra));
      mixture.template run_experts<T, B>(ctx, p.mixture, *plan, latent, combined, nullptr, extra, no_step);
    } else {
      keep->mixture.batch.take(x);
      gate().forward(ctx, p.mixture.gate, x, keep->mixture.plan, keep->mixture.gate, mixture.of_gate(extra));
      mixture.template run_experts<T, B>(ctx, p.mixture, keep->mixture.plan, latent, combined, &keep->mixture, extra,
                                         no_step);
    }
    run_branch<T, B>(up(), ctx, p.up, combined, u, nullptr, Nothing<T, B>{}, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    constexpr const char* where = "LatentMixture.backward";
    saved.mixture.batch.expect_same(where, x);
    expect_shape(where, "saved.latent", saved.latent, {x.extent(0), mixture.in_dim()});
    expect_shape(where, "saved.combined", saved.combined, {x.extent(0), mixture.out_dim()});
    mixture.expect_plan(where, saved.mixture.plan, saved.mixture.z, View<const T, 2, B>(saved.latent), experts());
    auto mark = ctx.mark();
    auto dlatent = ctx.template scratch<T>(x.extent(0), mixture.in_dim());
    auto dcombined = ctx.template scratch<T>(x.extent(0), mixture.out_dim());
    auto dplan = saved.mixture.plan.grad(ctx);
    Nothing<T, B> none;
    fill(ctx, dlatent, 0);
    fill(ctx, dcombined, 0);
    run_branch_backward<T, B>(up(), ctx, p.up, saved.combined, none, du, dcombined, grads.up, none, none);
    mixture.backward_experts(ctx, p.mixture, saved.latent, saved.mixture, dcombined, dlatent, grads.mixture, extra,
                             dplan);
    run_branch_backward<T, B>(down(), ctx, p.down, x, none, dlatent, dx, grads.down, none, none);
    gate().backward(ctx, p.mixture.gate, x, saved.mixture.plan, saved.mixture.gate, dplan, dx, grads.mixture.gate,
                    mixture.of_gate(extra), dextra);
  }
  GateT gate() const { return mixture.filled_gate(model_dim); }
  OneExpert<Linear> down() const { return {{.model_dim = model_dim, .output_dim = mixture.in_dim(), .bias = bias}}; }
  OneExpert<Linear> up() const { return {{.model_dim = mixture.out_dim(), .output_dim = model_dim, .bias = bias}}; }
  void expect_dim() const { expect(model_dim >= 1, "LatentMixture", "model_dim", "at least 1", model_dim); }
};
template <class G, class E>
LatentMixture(Mixture<G, E>, Index) -> LatentMixture<G, E>;
template <class G, class E>
LatentMixture(Mixture<G, E>, Index, bool) -> LatentMixture<G, E>;

}  // namespace gatefold
