#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "gatefold/core/error.hpp"
#include "gatefold/core/philox.hpp"

/// Random noise of policies, for example of gates: the struct Noise with the random numbers, and the distributions
/// (laws) of noise. A law is a template argument of NoisyTop1, NoisyTopK and Jitter. You can write your own law: a type
/// with a function like UniformNoise::sample. With E experts, the noise of item n and expert e is number n·E + e of the
/// random stream, for any number of items. Noise for the D values of an item has number n·D + d for value d of item n.
namespace gatefold {

/// The extra input of policies that draw random numbers, for example noisy selections and dropout. If `random` is
/// empty, they add no noise and drop no values. Leave it empty for evaluation.
struct Noise {
  std::optional<Random> random{};
  bool training = false;  // set by for_training; if true, dropout without random numbers throws

  /// Returns the noise of one layer of a stack. Every layer has a separate random stream.
  Noise at(Index layer) const {
    Noise noise = *this;
    if (random) noise.random = random->at(layer);
    return noise;
  }
  /// Requires random numbers in a training step with dropout, that is, if the dropout rate `rate` is not 0.
  /// @throws ArgumentError if there are no random numbers
  void expect_given(const char* where, double rate) const {
    expect(rate == 0 || random || !training, where, "extra.noise",
           "random numbers in a training step (for example trainer.noise()), or rate 0", "none");
  }
};

/// Noise that is uniform in [0, 1), as in papers 000 and 003.
struct UniformNoise {
  template <class T>
  GATEFOLD_HD static T sample(Random at, Index i) {
    return uniform<T>(at.seed, at.step, static_cast<std::uint64_t>(i));
  }
};

/// Noise that is uniform in [−1, 1).
struct SignedUniformNoise {
  template <class T>
  GATEFOLD_HD static T sample(Random at, Index i) {
    return 2 * UniformNoise::sample<T>(at, i) - 1;
  }
};

/// Normal noise with mean 0 and variance 1.
struct GaussianNoise {
  template <class T>
  GATEFOLD_HD static T sample(Random at, Index i) {
    return normal<T>(at.seed, at.step, static_cast<std::uint64_t>(i));
  }
};

/// Gumbel noise: −log(−log u), u ~ U(0, 1). With this noise, argmax(scores + noise) is a random draw from
/// softmax(scores).
/// Source: Maddison et al. 2014, arXiv:1411.0030, sec. 2.
struct GumbelNoise {
  template <class T>
  GATEFOLD_HD static T sample(Random at, Index i) {
    const double u = uniform<double>(at.seed, at.step, static_cast<std::uint64_t>(i));
    return static_cast<T>(-std::log(-std::log(u > 0 ? u : 0x1p-54)));
  }
};

namespace functor {

/// Returns number i of a random stream with the distribution LawT, or 0 if `noisy` is false.
template <class LawT, class T>
struct Draw {
  Random random;
  bool noisy;
  GATEFOLD_HD T operator()(Index i) const { return noisy ? LawT::template sample<T>(random, i) : T(0); }
  /// Calls f(j, value) for columns j < n in ascending order, but only for the columns that belong to this lane (one of
  /// the threads that compute a row together). `value` is random number first + j.
  template <class Lanes, class F>
  GATEFOLD_HD void each(const Lanes& lanes, Index first, Index n, const F& f) const {
    if constexpr (std::is_same_v<LawT, UniformNoise> && requires { lanes.template uniform<T>(random, first, n, f); }) {
      if (noisy) return lanes.template uniform<T>(random, first, n, f);
    }
    for (Index j = lanes.lane; j < n; j += lanes.size) f(j, (*this)(first + j));
  }
};
template <class LawT, class T>
Draw<LawT, T> draw(const Noise& noise) {
  return {noise.random.value_or(Random{}), noise.random.has_value()};
}

}  // namespace functor
}  // namespace gatefold
