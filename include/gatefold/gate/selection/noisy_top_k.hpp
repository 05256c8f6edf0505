#pragma once

#include <cmath>
#include <type_traits>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), LearnedDeviation);
GATEFOLD_FUNCTORS((class LawT, class T), AddNoise, DeviationBackward);

/// Picks the K best experts of each item after noise has been added to the ranks. The weights are a softmax of the
/// noisy values.
///
///     value[n,e] = rank[n,e] + deviation[n,e] · r[n,e],   I(n) = top_K value[n,:]
///
///     deviation[n,:] = softplus(x[n] W) + epsilon,  w[n,e] = softmax of value over I(n)                 (1)
///     deviation[n,e] = deviation / E,               w[n,e] = softmax of value over all experts          (2)
///
/// The option `learned` selects the deviation of (1) instead of (2), and `renormalise` the weights of (1) instead of
/// (2). Both are true in (1) (Shazeer), and false in (2) (V-MoE).
///
/// The elements of r are independent random numbers with the distribution NoiseLawT. They are multiplied by the
/// deviation, which is the standard deviation of the noise if r has the standard deviation 1. Without noise in the
/// extra input, NoisyTopK computes the same picks and weights as TopK. The weights also contain the noise, so the
/// gradient flows through value to rank and, if `learned` is true, to W and x. `noisy` returns value and deviation for
/// auxiliary losses. backward gets the gradients of these losses in d.noisy. The loss Load works only with
/// GaussianNoise, because it computes probabilities of Gaussian noise.
/// Source: (1) Shazeer et al. 2017, arXiv:1701.06538, eq. (3)-(5), r ~ N(0, 1), W starts at 0; (2) Riquelme et al.
/// 2021, arXiv:2106.05974, sec. 2.1. `reference` adds the epsilon of FastMoE's code to (1).
/// @tparam NoiseLawT  distribution of r: GaussianNoise, GumbelNoise, … (policy/noise.hpp)
/// @param rank [N, E] in   values to rank by;  q [N, E] in  their softmax
/// @param saved  value, deviation, softmax of value and x W [N, E]. All are empty without noise, and x W is also empty
///               unless `learned` is true
/// @throws ArgumentError unless 1 <= k <= experts, deviation > 0, epsilon >= 0, and W is [D, E] if `learned` is true,
///         otherwise [0, 0]
/// @cost   N·E draws and exponentials; N·E more exponentials and 2·N·D·E flop if `learned` is true; 2·N·K·E
///         comparisons; S = N·K picks
/// @order  as TopK: ties go to the lower expert index, NaN ranks last, picks are distinct
template <class NoiseLawT = GaussianNoise>
struct NoisyTopK {
  static constexpr bool shows_noise = std::is_same_v<NoiseLawT, GaussianNoise>;  // Load compiles only if this is true
  Index k = 2;
  bool renormalise = true;
  bool learned = true;
  double epsilon = 0;    // lower bound of the learned deviation[n,e] in (1)
  double deviation = 1;  // if `learned` is false, the deviation of the noise is this value / E, as in (2)
  Initial initial = Initial::zero();
  Index model_dim = 0, experts = 0;

  static NoisyTopK reference(NoisyTopK options = {}) {
    options.epsilon = 0.01;
    return options;
  }
  static NoisyTopK vmoe(NoisyTopK options = {}) {
    options.renormalise = options.learned = false;
    return options;
  }

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> noise;  // [D, E] W; [0, 0] unless learned
    GATEFOLD_PACK(noise)
    static constexpr int expert_extents[] = {1};
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> value, deviation, q, v;  // [N, E], v = x W
  };
  template <class T, class B>
  using Extra = Noise;

  /// Returns a copy of the options whose `model_dim` is `width`, the width of the items.
  /// @throws ArgumentError unless `model_dim` is 0 or `width`
  NoisyTopK with_model_dim(Index width) const { return fill_model_dim(*this, "NoisyTopK", width); }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    if (!learned) return {};
    expect_sizes("NoisyTopK.init", {{"model_dim", model_dim}, {"experts", experts}});
    return {initial_weights<T>(ctx, initial, seed, model_dim, experts)};
  }
  void validate_options(Index count) const {
    expect(k >= 1 && k <= count, "NoisyTopK", "k", Joined{"1 <= k <= experts = ", count}, k);
    expect(deviation > 0, "NoisyTopK", "deviation", "more than 0", deviation);
    expect(epsilon >= 0, "NoisyTopK", "epsilon", "at least 0", epsilon);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index, const Noise&) const {
    expect_shape("NoisyTopK", "params.noise", p.noise, {learned ? model_dim : 0, learned ? experts : 0});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Noise& noise) const {
    const Index items = noise.random ? c.q.extent(0) : 0, count = c.q.extent(1);
    validate_options(count);
    if (learned && items > 0) expect_shape("NoisyTopK", "params.noise", p.noise, {c.x.extent(1), count});
    for (auto* t : {&saved.value, &saved.deviation, &saved.q}) t->resize(items, count);
    saved.v.resize(learned ? items : 0, learned ? count : 0);
    Nothing<T, B> none;
    if (items == 0) return top_k().forward(ctx, none, c, plan, none, none);
    if (learned) {
      B::gemm(ctx, c.x, false, p.noise.view(), false, false, saved.v.view(), functor::Store{});
      B::for_each(ctx, saved.v.size(),
                  functor::LearnedDeviation<T>{T(epsilon), saved.v.data(), saved.deviation.data()});
    } else {
      fill(ctx, saved.deviation.view(), T(deviation / static_cast<double>(count)));
    }
    B::for_each(ctx, saved.value.size(),
                functor::AddNoise<NoiseLawT, T>{c.rank.data(), saved.deviation.data(),
                                                functor::draw<NoiseLawT, T>(noise), saved.value.data()});
    B::for_rows(ctx, items, functor::Softmax<T, B>{saved.value, saved.q});
    top_k().forward(ctx, none, noisy_candidates(c, saved), plan, none, none);
  }
  /// Returns the noisy values by which the experts were ordered, and the deviations of the noise, for auxiliary losses.
  /// Returns empty views if there was no noise.
  template <class T, class B>
  NoisyRank<const T, B> noisy(const Saved<T, B>& saved) const {
    if (saved.value.size() == 0) return {};
    return {saved.value, saved.deviation};
  }
  /// Adds the gradients of x, of the ranks and of the parameters to d.x, d.rank and grads. Without noise, adds only the
  /// gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Saved<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Params<T, B>& grads, const Noise& noise) const {
    const Index items = noise.random ? c.q.extent(0) : 0, count = c.q.extent(1);
    expect_shape("NoisyTopK.backward", "saved.value", saved.value, {items, count});
    expect_shape("NoisyTopK.backward", "saved.deviation", saved.deviation, {items, count});
    expect_shape("NoisyTopK.backward", "saved.q", saved.q, {items, count});
    expect_shape("NoisyTopK.backward", "saved.v", saved.v, {learned ? items : 0, learned ? count : 0});
    Nothing<T, B> none;
    if (saved.value.size() == 0) return top_k().backward(ctx, none, c, plan, none, dplan, d, none, none);
    auto mark = ctx.mark();
    auto dq = ctx.template scratch<T>(c.q.extent(0), c.q.extent(1));
    auto dvalue = ctx.template scratch<T>(c.q.extent(0), c.q.extent(1));
    fill(ctx, dq, 0);
    top_k().backward(ctx, none, noisy_candidates(c, saved), plan, none, dplan, CandidatesGrad<T, B>{d.x, d.rank, dq},
                     none, none);
    B::for_rows(ctx, dq.extent(0), functor::SoftmaxBackward<T, B>{saved.q, dq, dvalue});
    if (d.noisy.value.data()) add(ctx, d.noisy.value, dvalue);
    add(ctx, dvalue, d.rank);
    if (!learned) return;
    const View<T, 2, B> dv = dq;  // dq is no longer needed, so its memory is reused
    B::for_each(ctx, dv.size(),
                functor::DeviationBackward<NoiseLawT, T>{dvalue.data(), d.noisy.deviation.data(), saved.v.data(),
                                                         functor::draw<NoiseLawT, T>(noise), dv.data()});
    if (!grads.noise.is_skipped())
      B::gemm(ctx, c.x, true, View<const T, 2, B>(dv), false, true, grads.noise.view(), functor::Store{});
    B::gemm(ctx, View<const T, 2, B>(dv), false, p.noise.view(), true, true, d.x, functor::Store{});
  }

 private:
  TopK top_k() const { return {.k = k, .renormalise = renormalise}; }
  template <class T, class B>
  static Candidates<T, B> noisy_candidates(const Candidates<T, B>& c, const Saved<T, B>& saved) {
    return {c.x, saved.value, saved.q, c.valid, c.first_evaluation};
  }
};

namespace functor {

/// Writes the learned deviation of the noise, log(1 + exp v) + epsilon, with v = x W of NoisyTopK.
template <class T>
struct LearnedDeviation {
  T epsilon;
  const T* v;
  T* deviation;
  GATEFOLD_HD void operator()(Index i) const { deviation[i] = functor::math::softplus(v[i]) + epsilon; }
};
template <class LawT, class T>
struct AddNoise {
  const T *rank, *deviation;
  Draw<LawT, T> noise;
  T* value;
  GATEFOLD_HD void operator()(Index i) const { value[i] = rank[i] + deviation[i] * noise(i); }
};
/// Writes dv, the gradient of v in value = rank + (softplus(v) + epsilon) · noise. The functor reads v, not the saved
/// deviation softplus(v) + epsilon, because the deviation loses the digits of softplus(v) if epsilon is much larger.
template <class LawT, class T>
struct DeviationBackward {
  const T *dvalue, *ddeviation, *v;  // ddeviation can be null: no gradient
  Draw<LawT, T> noise;
  T* dv;
  GATEFOLD_HD void operator()(Index i) const {
    const T d = dvalue[i] * noise(i) + (ddeviation ? ddeviation[i] : T(0));
    dv[i] = d * functor::math::sigmoid(v[i]);
  }
};

}  // namespace functor

}  // namespace gatefold
