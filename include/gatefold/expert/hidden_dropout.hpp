#pragma once

#include <type_traits>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), HiddenFactors);

namespace detail_::policy {

template <class E, class T, class B>
constexpr bool check_takes_factor();

}  // namespace detail_::policy

/// An expert (Mlp or GatedMlp) with dropout of its hidden values h. During training, each value becomes 0 with
/// probability `rate`. The other values are divided by 1 − rate, so that the expected value stays the same.
///
///     h̃[s] = ξ ⊙ h[s] / (1 − rate),   z[s] = h̃[s] V_e + b_e,   ξ[s,j] = 0 with probability rate, else 1   (1)
///
/// Source: the code of papers 001 and 002, whose experts are W₂ Drop(ReLU(W₁ x + b₁)) + b₂, in mixtures and in dense
/// layers.
///
/// Without noise (random numbers), or with rate 0, the result has the same bits as the result of the wrapped expert.
/// The parameters and their names are always those of the wrapped expert.
/// @param x [N, D] in items, z [S, D] out
/// @param noise  the random numbers of one call. A Mixture or OneExpert with this expert has the noise as extra input,
///               and passes it on
/// @param saved  the saved values of the wrapped expert; backward draws ξ again
/// @throws ArgumentError unless 0 <= rate < 1; Trainer.step and ThreeStage.step also throw it if there is no noise and
///         rate is not 0
/// @cost   S·H random numbers and S·H values of scratch, in forward and again in backward
/// @order  ξ of hidden value j of item n at expert e is drawn with random number (n·E + e)·H + j, for any slot s.
///         Therefore ξ does not depend on the number of threads and shards, nor on the routing of other items
template <class ExpertT>
struct HiddenDropout {
  GATEFOLD_REQUIRE(!detail_::policy::is_misplaced<ExpertT>,
                   "gatefold: HiddenDropout takes a rate and an expert: HiddenDropout{rate, expert}; see "
                   "docs/how-to/extending.md#expert");
  GATEFOLD_REQUIRE(
      detail_::policy::is_misplaced<ExpertT> || requires(ExpertT e) { e.hidden_dim; },
      "gatefold: HiddenDropout needs an expert with hidden values: an Mlp or a GatedMlp; see "
      "docs/how-to/extending.md#expert");
  static constexpr bool stores_slots = detail_::hook::expert::stores_slots<ExpertT>();
  double rate = 0.1;
  ExpertT expert;
  Noise noise{};

  template <class T, class B>
  struct Params {
    gatefold::Params<ExpertT, T, B> expert;
    static void each(auto&& f, auto&... p) { f("", p.expert...); }
  };
  template <class T, class B>
  using Saved = gatefold::Saved<ExpertT, T, B>;

  Index in_dim() const { return expert.in_dim(); }
  Index out_dim() const { return expert.out_dim(); }
  HiddenDropout with_noise(const Noise& of_call) const { return {rate, expert, of_call}; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect_options();
    if constexpr (detail_::policy::check_takes_factor<ExpertT, T, B>()) {
      return {expert.template init<T, B>(ctx, experts, seed)};
    } else {
      return {};
    }
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_options();
    noise.expect_given("HiddenDropout", rate);
    expert.validate(p.expert, experts);
  }

  template <class T, class B, class Z = T>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<Z, 2, B> z,
               NonDeduced<Saved<T, B>>& saved) const {
    with_factors<T>(ctx, groups, [&](const auto& of, const auto& factor) {
      forward_slots<T, B, Z>(of, ctx, p.expert, groups, x, z, saved, factor);
    });
  }
  template <class T, class B, class Z = T>
  void infer(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<Z, 2, B> z) const {
    with_factors<T>(ctx, groups, [&](const auto& of, const auto& factor) {
      infer_slots<T, B, Z>(of, ctx, p.expert, groups, x, z, factor);
    });
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                const NonDeduced<Saved<T, B>>& saved, In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    with_factors<T>(ctx, groups, [&](const auto& of, const auto& factor) {
      of.backward(ctx, p.expert, groups, x, saved, dz, dslots, grads.expert, factor);
    });
  }
  template <class T, class B, class Z = T>
  void weighted_backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                         const NonDeduced<Saved<T, B>>& saved, In<T, 2, B> du, const SlotWeights<T, B>& weights,
                         Out<Z, 2, B> dslots, Params<T, B>& grads) const {
    with_factors<T>(ctx, groups, [&](const auto& of, const auto& factor) {
      weighted_backward_slots<T, B, Z>(of, ctx, p.expert, groups, x, saved, du, weights, dslots, grads.expert, factor);
    });
  }

 private:
  void expect_options() const { expect(0 <= rate && rate < 1, "HiddenDropout", "rate", "0 <= rate < 1", rate); }
  /// Calls f(expert, factors) with the wrapped expert and the dropout factors [S, H] of its hidden values, in scratch
  /// memory. `factors` is empty if no value is dropped.
  template <class T, class C, class B, class F>
  void with_factors(C& ctx, const Groups<B>& groups, const F& f) const {
    if constexpr (detail_::policy::check_takes_factor<ExpertT, T, B>()) {
      auto mark = ctx.mark();
      View<T, 2, B> factor;
      if (rate > 0 && noise.random) {
        factor = ctx.template scratch<T>(groups.slots, expert.hidden_dim);
        B::for_rows(ctx, groups.slots, functor::HiddenFactors<T, B>{groups, *noise.random, rate, factor});
      }
      f(expert, View<const T, 2, B>(factor));
    }
  }
};
template <class E>
HiddenDropout(double, E) -> HiddenDropout<E>;
template <class First, class... Rest, class = std::enable_if_t<!std::is_arithmetic_v<First>>>
HiddenDropout(First, Rest...) -> HiddenDropout<detail_::policy::Misplaced<First, Rest...>>;

namespace functor {

/// Writes the dropout factors of the H hidden values of slot s, which computes item n with expert e. factor[s,j] is 0
/// if random number (n · E + e) · H + j, uniform in [0, 1), is less than the rate, and 1 / (1 − rate) otherwise.
template <class T, class B>
struct HiddenFactors {
  Groups<B> groups;
  Random random;
  double rate;
  View<T, 2, B> factor;  // [S, H]

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index e = from_first(lanes, [&] { return groups.expert(s); }), columns = factor.extent(1);
    if (e < 0) return;
    const T least = T(rate), scale = T(1 / (1 - rate));
    T* const to = factor.data() + s * columns;
    Draw<UniformNoise, T>{random, true}.each(lanes, groups.number(s, e) * columns, columns,
                                             [&](Index j, T u) { to[j] = u < least ? T(0) : scale; });
  }
};

}  // namespace functor

namespace detail_::policy {

template <class E, class T, class B>
concept TakesFactor = requires(const E expert, Probe<T, B> a, const Params<E, T, B>& params, Saved<E, T, B>& saved,
                               const SlotWeights<T, B>& weights, Params<E, T, B>& grads) {
  expert.forward(a.ctx, params, a.groups, a.in, a.out, saved, a.in);
  expert.infer(a.ctx, params, a.groups, a.in, a.out, a.in);
  expert.backward(a.ctx, params, a.groups, a.in, saved, a.in, a.out, grads, a.in);
  expert.weighted_backward(a.ctx, params, a.groups, a.in, saved, a.in, weights, a.out, grads, a.in);
};

/// Returns true if HiddenDropout (dropout of hidden values) can wrap the expert E. If it cannot, a static_assert
/// describes the mistake.
template <class E, class T, class B>
constexpr bool check_takes_factor() {
  GATEFOLD_EXPECT((TakesFactor<E, T, B>),
                  "gatefold: the expert in a HiddenDropout (for example Mlp or GatedMlp) must multiply its hidden "
                  "values by factor [S, hidden_dim], the last argument of forward, infer, backward and "
                  "weighted_backward; see docs/how-to/extending.md#expert")
  return true;
}

}  // namespace detail_::policy

}  // namespace gatefold
