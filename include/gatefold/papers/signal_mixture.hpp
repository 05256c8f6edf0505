#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "gatefold/backend/backend.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/tensor.hpp"

namespace gatefold {

/// The distribution of a signal's amplitude: uniform in [low, high), or the constant `low` if low = high.
struct Amplitude {
  double low = 1, high = 1;
};

GATEFOLD_FUNCTORS((class T, class B), DrawSignals);

/// A synthetic data set for classification. Each item is a sequence x^(1), x^(2), … of vectors. One vector is the
/// feature v_k of a cluster k, and its sign is the label y. A second vector is the centre c_k of the cluster.
/// A third vector is a distractor, the feature of another cluster. All others are noise. Papers 000 and 003 use these
/// data.
///
///     x^(p₀) = β c_k,   x^(p₁) = α y v_k,   x^(p₂) = γ s v_k',   every other x^(p) ~ N(0, σ²/d I)        (1)
///
/// with
///
/// - y and s uniform in {−1, +1},
/// - k uniform in the clusters (or P(k) ∝ decayᵏ), and k' uniform in the other clusters,
/// - p₀, p₁, p₂ distinct and uniform in the positions,
/// - α, β, γ uniform in their ranges.
///
/// All v_k and c_k are orthonormal. Because the distractor also is a feature with a sign, a model must read the cluster
/// from c_k to find the label. All vectors are multiplied by `scale`.
/// Source: paper 000, definition 1, whose amplitudes are 1 (the defaults); paper 003, definition 1 (`expert_count`);
/// the code of Chen et al. 2022, arXiv:2208.02813 (`reference`).
/// @param clusters   the number of clusters, K (N in paper 000)
/// @param length     positions (patches) of an item
/// @param feature, center, distractor  distributions of α, β, γ
/// @param noise      σ, which is √d times the standard deviation of an element of the noise
/// @throws ArgumentError unless clusters >= 2, 2·clusters <= model_dim, length >= 3, noise >= 0, decay > 0, every
///         number is finite, and low <= high in every Amplitude
/// @order  for the same signals and seed, item n is the same for any number of items
struct SignalMixture {
  Index clusters = 4, model_dim = 50, length = 8;
  Amplitude feature{}, center{}, distractor{};
  double noise = 1, decay = 1, scale = 1;

  /// Returns the settings of the experiments of paper 003: 4 clusters, vectors of 50 values, and amplitudes α ~ U(0.5,
  /// 2) of the feature, β ~ U(1, 2) of the centre and γ ~ U(0.5, 3) of the distractor.
  static SignalMixture expert_count(Index patches = 4) {
    return {.clusters = 4,
            .model_dim = 50,
            .length = patches,
            .feature = {0.5, 2},
            .center = {1, 2},
            .distractor = {0.5, 3}};
  }
  /// Returns one of the settings 1 to 4 of the code of Chen et al. (uclaml/MoE). Setting 1 has the values of paper 003.
  /// Settings 2 and 4 have twice the noise, and settings 3 and 4 have weaker distractors. In all settings, the inputs
  /// are multiplied by 10, which no paper mentions.
  static SignalMixture reference(Index setting = 1) {
    expect(1 <= setting && setting <= 4, "SignalMixture.reference", "setting", "1 to 4", setting);
    SignalMixture data = expert_count();
    data.noise = setting % 2 == 0 ? 2 : 1;
    data.distractor.high = setting > 2 ? 2 : 3;
    data.scale = 10;
    return data;
  }

  /// The directions of a data set's signals. Draw them once, and use them for all items of the data set.
  template <class T, class B>
  struct Signals {
    Tensor<T, 2, B> feature, center;  // [K, d] v_k and c_k
  };
  /// Items of a data set with their labels, and the random choices (clusters, positions) from which they were made.
  template <class T, class B>
  struct Sample {
    Tensor<T, 2, B> x;                        // [N, length · d]
    Tensor<T, 2, B> target;                   // [N, 1] y
    Tensor<Index, 1, B> cluster, distractor;  // [N] k and k'
    Tensor<Index, 2, B> place;                // [N, 3] p₀, p₁, p₂
  };

  Index item_dim() const { return length * model_dim; }

  void validate() const {
    expect(clusters >= 2, "SignalMixture", "clusters", "at least 2", clusters);
    expect(2 * clusters <= model_dim, "SignalMixture", "model_dim", Joined{"at least 2 * clusters = ", 2 * clusters},
           model_dim);
    expect(length >= 3, "SignalMixture", "length", "at least 3", length);
    expect(noise >= 0, "SignalMixture", "noise", "at least 0", noise);
    expect(decay > 0, "SignalMixture", "decay", "more than 0", decay);
    expect_finite("SignalMixture", "noise", noise);
    expect_finite("SignalMixture", "decay", decay);
    expect_finite("SignalMixture", "scale", scale);
    const auto expect_law = [](const char* name, const Amplitude& law) {
      expect_finite("SignalMixture", Joined{name, ".low"}, law.low);
      expect_finite("SignalMixture", Joined{name, ".high"}, law.high);
      expect(law.low <= law.high, "SignalMixture", Joined{name, ".high"}, Joined{"at least ", name, ".low = ", law.low},
             law.high);
    };
    expect_law("feature", feature);
    expect_law("center", center);
    expect_law("distractor", distractor);
  }

  /// Draws random orthonormal directions for the features and then for the centres, with Gram-Schmidt in double on
  /// vectors of Gaussian random numbers.
  template <class T, class B>
  Signals<T, B> signals(typename B::Context& ctx, Seed seed) const {
    validate();
    const auto at = [&](Index row) { return static_cast<std::size_t>(row * model_dim); };
    std::vector<double> rows(at(2 * clusters));
    for (Index r = 0; r < 2 * clusters; ++r) {
      double* v = rows.data() + at(r);
      for (Index j = 0; j < model_dim; ++j)
        v[j] = normal<double>(seed, 0, static_cast<std::uint64_t>(r * model_dim + j));
      // The second pass of Gram-Schmidt removes the rounding errors of the first.
      for (int pass = 0; pass < 2; ++pass)
        for (Index s = 0; s < r; ++s) {
          const double* w = rows.data() + at(s);
          double dot = 0;
          for (Index j = 0; j < model_dim; ++j) dot += v[j] * w[j];
          for (Index j = 0; j < model_dim; ++j) v[j] -= dot * w[j];
        }
      double squares = 0;
      for (Index j = 0; j < model_dim; ++j) squares += v[j] * v[j];
      for (Index j = 0; j < model_dim; ++j) v[j] /= std::sqrt(squares);
    }
    const std::vector<T> values(rows.begin(), rows.end());
    Signals<T, B> s{Tensor<T, 2, B>(clusters, model_dim), Tensor<T, 2, B>(clusters, model_dim)};
    B::from_host(ctx, s.feature.size(), values.data(), s.feature.data());
    B::from_host(ctx, s.center.size(), values.data() + at(clusters), s.center.data());
    return s;
  }

  /// Draws N = `items` random items of the data set.
  /// @cost N·length·d normal random numbers
  template <class T, class B>
  Sample<T, B> draw(typename B::Context& ctx, const Signals<T, B>& signals, Seed seed, Index items) const {
    validate();
    expect_shape("SignalMixture.draw", "signals.feature", signals.feature, {clusters, model_dim});
    expect_shape("SignalMixture.draw", "signals.center", signals.center, {clusters, model_dim});
    expect(items >= 0, "SignalMixture.draw", "items", "at least 0", items);
    Sample<T, B> s{Tensor<T, 2, B>(items, item_dim()), Tensor<T, 2, B>(items, 1), Tensor<Index, 1, B>(items),
                   Tensor<Index, 1, B>(items), Tensor<Index, 2, B>(items, 3)};
    B::for_rows(ctx, items,
                functor::DrawSignals<T, B>{seed, feature, center, distractor, noise, decay, scale, signals.feature,
                                           signals.center, s.x.view().as(items, length, model_dim), s.target, s.cluster,
                                           s.distractor, s.place});
    return s;
  }
};

namespace functor {

/// Converts a random number u in [0, 1) to an integer that is uniform in 0, …, count − 1.
GATEFOLD_HD inline Index one_of(Index count, double u) { return static_cast<Index>(u * static_cast<double>(count)); }

/// Draws item n of the data set SignalMixture: its label, its signals and their positions, and the noise of the other
/// positions.
template <class T, class B>
struct DrawSignals {
  Seed seed;
  Amplitude law_feature, law_center, law_distractor;
  double noise, decay, scale;
  View<const T, 2, B> feature, center;
  View<T, 3, B> x;  // [N, L, d]
  View<T, 2, B> target;
  View<Index, 1, B> cluster, distractor;
  View<Index, 2, B> place;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index length = x.extent(1), dim = x.extent(2), clusters = feature.extent(0);
    const double y = u(n, 0) < 0.5 ? -1 : 1, sign = u(n, 1) < 0.5 ? -1 : 1;
    const Index k = cluster_of(u(n, 2)), other = beside(one_of(clusters - 1, u(n, 3)), k);
    const Index at_center = one_of(length, u(n, 4)), at_feature = beside(one_of(length - 1, u(n, 5)), at_center);
    const Index low = at_center < at_feature ? at_center : at_feature, high = at_center + at_feature - low;
    const Index at_distractor = beside(beside(one_of(length - 2, u(n, 6)), low), high);
    const double of_feature = scale * y * amplitude(law_feature, u(n, 7)),
                 of_center = scale * amplitude(law_center, u(n, 8)),
                 of_distractor = scale * sign * amplitude(law_distractor, u(n, 9));
    const double deviation = scale * noise / std::sqrt(static_cast<double>(dim));
    for (Index l = 0; l < length; ++l)
      for (Index j = lanes.lane; j < dim; j += lanes.size) {
        double v = 0;
        if (l == at_center) {
          v = of_center * static_cast<double>(center(k, j));
        } else if (l == at_feature) {
          v = of_feature * static_cast<double>(feature(k, j));
        } else if (l == at_distractor) {
          v = of_distractor * static_cast<double>(feature(other, j));
        } else {
          v = deviation *
              normal<double>(seed.fork(1), static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(l * dim + j));
        }
        x(n, l, j) = static_cast<T>(v);
      }
    if (lanes.lane > 0) return;
    target(n, 0) = static_cast<T>(y);
    cluster(n) = k;
    distractor(n) = other;
    place(n, 0) = at_center;
    place(n, 1) = at_feature;
    place(n, 2) = at_distractor;
  }

 private:
  /// Returns random number i of item n, uniform in [0, 1).
  GATEFOLD_HD double u(Index n, std::uint64_t i) const {
    return uniform<double>(seed.fork(0), static_cast<std::uint64_t>(n), i);
  }
  /// Returns number i of the sequence 0, 1, 2, … without the number `taken`.
  GATEFOLD_HD static Index beside(Index i, Index taken) { return i < taken ? i : i + 1; }
  GATEFOLD_HD static double amplitude(Amplitude law, double at) { return law.low + (law.high - law.low) * at; }
  /// Converts a random number in [0, 1) to the index of a cluster. Cluster k has a probability proportional to decayᵏ.
  GATEFOLD_HD Index cluster_of(double at) const {
    const Index clusters = feature.extent(0);
    if (decay == 1) return one_of(clusters, at);
    double total = 0, share = 1;
    for (Index k = 0; k < clusters; ++k, share *= decay) total += share;
    double up_to = share = 1;
    Index k = 0;
    while (k + 1 < clusters && at * total >= up_to) {
      share *= decay;
      up_to += share;
      ++k;
    }
    return k;
  }
};

}  // namespace functor

}  // namespace gatefold
