#pragma once

#include "gatefold/gate/gate.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class LawT, class T), JitterFactor, AddJitter);

/// Multiplies each element of an item by a random number near 1 before the scores of the item are computed, so that the
/// router also tries other experts.
///
///     z = scores(x ⊙ ξ),   ξ = 1 + ε r                                                                  (1)
///
/// The elements of r are independent random numbers with the distribution NoiseLawT.
/// Source: Switch, Fedus et al. 2021, arXiv:2101.03961, sec. 2.2 and app., r ~ U[−1, 1). The experts get x without
/// jitter. Without noise in the extra inputs, z = scores(x).
/// @tparam ScoresT    scores without extra inputs
/// @tparam NoiseLawT  distribution of r: SignedUniformNoise, GaussianNoise, … (policy/noise.hpp)
/// @param extra  the noise from which r is drawn; empty in evaluation
/// @throws ArgumentError unless 0 <= epsilon < 1
/// @cost   the cost of `scores` and N·D random numbers, which backward draws again
/// @order  element (n, d) of ξ uses draw n·D + d of the random stream
template <class ScoresT = LinearScores, class NoiseLawT = SignedUniformNoise>
struct Jitter {
  ScoresT scores{};
  double epsilon = 0.01;

  template <class T, class B>
  struct Params {
    using Scores = gatefold::Params<ScoresT, T, B>;
    static constexpr bool learned = is_learned<Scores>, gradient_is_optional = gatefold::gradient_is_optional<Scores>;
    Scores scores;
    static void each(auto&& f, auto&... p) { Scores::each(f, p.scores...); }
  };
  template <class T, class B>
  using Extra = Noise;

  Index experts() const { return count_experts(scores); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    return {init_params<T, B>(scores, ctx, seed)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p) const {
    expect_options();
    if constexpr (detail_::hook::scores::validate<ScoresT, T, B>()) scores.validate(p.scores);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> z,
               const Noise& noise) const {
    validate(p);
    auto mark = ctx.mark();
    scores.forward(ctx, p.scores, jittered<T, B>(ctx, x, noise), z);
  }
  /// Adds the gradients of x and of the parameters to dx and grads.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, In<T, 2, B> dz, Out<T, 2, B> dx,
                Params<T, B>& grads, const Noise& noise) const {
    if (!noise.random) return scores.backward(ctx, p.scores, x, dz, dx, grads.scores);
    auto mark = ctx.mark();
    auto djittered = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, djittered, 0);
    scores.backward(ctx, p.scores, jittered<T, B>(ctx, x, noise), dz, djittered, grads.scores);
    B::for_each(ctx, dx.size(), functor::AddJitter<NoiseLawT, T>{factor<T>(noise), djittered.data(), dx.data()});
  }

 private:
  void expect_options() const { expect(0 <= epsilon && epsilon < 1, "Jitter", "epsilon", "0 <= epsilon < 1", epsilon); }
  template <class T>
  functor::JitterFactor<NoiseLawT, T> factor(const Noise& noise) const {
    return {*noise.random, T(epsilon)};
  }
  template <class T, class B>
  View<const T, 2, B> jittered(typename B::Context& ctx, In<T, 2, B> x, const Noise& noise) const {
    if (!noise.random) return x;
    auto y = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, y, 0);
    B::for_each(ctx, x.size(), functor::AddJitter<NoiseLawT, T>{factor<T>(noise), x.data(), y.data()});
    return y;
  }
};
template <class S>
Jitter(S) -> Jitter<S>;
template <class S>
Jitter(S, double) -> Jitter<S>;

namespace functor {

/// Returns the random factor 1 + ε r that multiplies element i of the items. r is number i of the random stream.
template <class LawT, class T>
struct JitterFactor {
  Random random;
  T epsilon;
  GATEFOLD_HD T operator()(Index i) const { return 1 + epsilon * LawT::template sample<T>(random, i); }
};
/// Adds x ⊙ ξ to y, with ξ the random factors of Jitter (JitterFactor).
template <class LawT, class T>
struct AddJitter {
  JitterFactor<LawT, T> factor;
  const T* x;
  T* y;
  GATEFOLD_HD void operator()(Index i) const { y[i] += x[i] * factor(i); }
};

}  // namespace functor

}  // namespace gatefold
