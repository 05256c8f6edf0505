#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "../support/run.hpp"

namespace studies::expert_count {

inline constexpr Index kClusters = 4, kDim = 50;  // K clusters, and d values per patch, as in the paper

/// One run of the layer of paper 003, and all values that its result depends on.
///
/// Defaults are the values of the paper. Values that the paper does not print are taken from the code of Chen et al.
/// (uclaml/MoE), because the paper repeats the setup and the learning rates of that code. The number of training items,
/// the number of iterations, σ₀ and the factor of ten on the inputs should be used together. With inputs of size one,
/// 501 steps of length 0.001 would move an expert by at most 0.5, and the loss would stay near its initial value log 2.
/// For a cubic activation, the factor is equivalent to an expert rate of 0.01, a router rate of 10 and ten times σ₀.
struct Setting {
  std::string expert = "mlp";        // mlp: a router per patch; cnn: one router for all patches
  std::string activation = "cubic";  // activation in the paper's proofs; its main text names none
  Index patches = 4, experts = 8, filters = 8, k = 1;
  Index train = 16000, test = 16000, iterations = 501;  // not in the paper
  double sigma0 = 8.2e-5;  // standard deviation of 0.001 · U(±1/√50), for the initial weights; not in the paper
  double scale = 10;       // not in the paper
  double decay = 1;        // the share of cluster k is proportional to decayᵏ
  double eta = 1e-3, eta_router = 0.1;
  bool equal_patches = true;  // true: equal initial weights at all patches, eq. (2); false: Lemma 3
  bool test_noise = false;    // noise of the gate in tests, as in Chen et al. but not in eq. (1)
  std::uint64_t seed = 1;

  /// Returns the learning rate of the router in the paper, which has a different rate for each number of experts.
  static double paper_eta_router(Index experts) { return experts <= 16 ? 0.1 : experts <= 32 ? 0.25 : 0.4; }

  /// Rounds a time down to a whole iteration, at most 1e15, which is later than any last iteration.
  static Index whole(double t) { return static_cast<Index>(std::floor(std::min(t, 1e15))); }
  /// Returns the iteration at which the exploration stage ends, T₁ = ⌊σ₀^½/η⌋, with the deviation σ₀ of initial weights
  /// and the learning rate η.
  Index t1() const { return whole(std::sqrt(sigma0) / eta); }
  /// Returns the iteration at which the router's stage ends, T₂ = ⌊1/(η M²)⌋, for M experts and the learning rate η.
  Index t2() const { return whole(1 / (eta * static_cast<double>(experts * experts))); }

  std::string label() const { return expert + ".p" + std::to_string(patches) + ".m" + std::to_string(experts); }
  Json json() const {
    return {{"expert", expert},
            {"activation", activation},
            {"patches", patches},
            {"experts", experts},
            {"filters", filters},
            {"k", k},
            {"train", train},
            {"test", test},
            {"iterations", iterations},
            {"sigma0", sigma0},
            {"scale", scale},
            {"decay", decay},
            {"eta", eta},
            {"eta_router", eta_router},
            {"equal_patches", equal_patches},
            {"test_noise", test_noise},
            {"seed", seed}};
  }
  /// Returns the cost of the run relative to other runs. It grows with the number of items and patches. It also grows
  /// with the number of experts, because of the gate and its noise.
  double cost() const {
    return static_cast<double>(train * iterations * patches) * (1 + 0.02 * static_cast<double>(experts));
  }
};

/// These functions train one layer. For each kind of expert, one function is for the cubic activation, and one for all
/// other activations. Each function is in a separate file.
Json train_mlp_cubic(const Setting&, const Report&);
Json train_mlp_other(const Setting&, const Report&);
Json train_cnn_cubic(const Setting&, const Report&);
Json train_cnn_other(const Setting&, const Report&);

inline Json train(const Setting& s, const Report& report) {
  if (s.expert == "mlp") return s.activation == "cubic" ? train_mlp_cubic(s, report) : train_mlp_other(s, report);
  return s.activation == "cubic" ? train_cnn_cubic(s, report) : train_cnn_other(s, report);
}

}  // namespace studies::expert_count
