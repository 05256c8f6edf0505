#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "setting.hpp"

namespace studies::expert_count {

/// One run of the experiments of uclaml/MoE.
struct ReferenceRun {
  Index setting = 1;    // s1 … s4
  bool linear = false;  // no cube
  Index train = 16000, test = 16000, epochs = 501;
  std::uint64_t seed = 1;
  std::uint64_t data = 0, start = 0, noise = 0;  // seeds; 0: the seed of the run

  Json json(const std::string& model) const {
    Json j{{"model", model}, {"setting", setting}, {"linear", linear}, {"train", train},
           {"test", test},   {"epochs", epochs},   {"seed", seed}};
    for (const auto& [part, other] : {std::pair{"data", data}, {"start", start}, {"noise", noise}})
      if (other != 0) j[part] = other;
    return j;
  }
  double cost() const { return static_cast<double>(train * epochs * 4); }
};

/// A mixture of eight experts. Differences from the papers:
/// - The weight of a pick is its noisy score.
/// - Two logits go through two softmaxes.
/// - The norms of an expert's weights and biases are added.
/// - Experts have biases.
/// - Inputs are ten times as large.
/// - Tests have noise, too.
/// - Training ends at a loss of 0.314, or of 0.02 above its least.
Json train_reference(const ReferenceRun&, const Report&);
/// One network of 40 channels per logit without a gate, trained by Adam.
Json train_single(const ReferenceRun&, const Report&);

}  // namespace studies::expert_count
